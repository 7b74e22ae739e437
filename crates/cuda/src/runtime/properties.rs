//! `cudaGetDeviceProperties`, put together from the attributes of a device.

use std::ffi::{c_char, c_int, c_uint};

use super::give;
use crate::code::Code;
use crate::core::attribute as at;
use crate::core::session::Session;
use crate::core::thread::with_session;

/// `cudaDeviceProp` of CUDA 13. Names are those of its documentation.
#[repr(C)]
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy)]
pub struct Properties {
    pub name: [c_char; 256],
    pub uuid: [u8; 16],
    pub luid: [c_char; 8],
    pub luid_device_node_mask: c_uint,
    pub total_global_mem: usize,
    pub shared_mem_per_block: usize,
    pub regs_per_block: c_int,
    pub warp_size: c_int,
    pub mem_pitch: usize,
    pub max_threads_per_block: c_int,
    pub max_threads_dim: [c_int; 3],
    pub max_grid_size: [c_int; 3],
    pub total_const_mem: usize,
    pub major: c_int,
    pub minor: c_int,
    pub texture_alignment: usize,
    pub texture_pitch_alignment: usize,
    pub multi_processor_count: c_int,
    pub integrated: c_int,
    pub can_map_host_memory: c_int,
    /// `maxTexture1D` to `maxSurfaceCubemapLayered`, 39 numbers; there are no textures here.
    pub textures: [c_int; 39],
    pub surface_alignment: usize,
    pub concurrent_kernels: c_int,
    pub ecc_enabled: c_int,
    pub pci_bus_id: c_int,
    pub pci_device_id: c_int,
    pub pci_domain_id: c_int,
    pub tcc_driver: c_int,
    pub async_engine_count: c_int,
    pub unified_addressing: c_int,
    pub memory_bus_width: c_int,
    pub l2_cache_size: c_int,
    pub persisting_l2_cache_max_size: c_int,
    pub max_threads_per_multi_processor: c_int,
    pub stream_priorities_supported: c_int,
    pub global_l1_cache_supported: c_int,
    pub local_l1_cache_supported: c_int,
    pub shared_mem_per_multiprocessor: usize,
    pub regs_per_multiprocessor: c_int,
    pub managed_memory: c_int,
    pub is_multi_gpu_board: c_int,
    pub multi_gpu_board_group_id: c_int,
    pub host_native_atomic_supported: c_int,
    pub pageable_memory_access: c_int,
    pub concurrent_managed_access: c_int,
    pub compute_preemption_supported: c_int,
    pub can_use_host_pointer_for_registered_mem: c_int,
    pub cooperative_launch: c_int,
    pub shared_mem_per_block_optin: usize,
    pub pageable_memory_access_uses_host_page_tables: c_int,
    pub direct_managed_mem_access_from_host: c_int,
    pub max_blocks_per_multi_processor: c_int,
    pub access_policy_max_window_size: c_int,
    pub reserved_shared_mem_per_block: usize,
    pub host_register_supported: c_int,
    pub sparse_cuda_array_supported: c_int,
    pub host_register_read_only_supported: c_int,
    pub timeline_semaphore_interop_supported: c_int,
    pub memory_pools_supported: c_int,
    pub gpu_direct_rdma_supported: c_int,
    pub gpu_direct_rdma_flush_writes_options: c_uint,
    pub gpu_direct_rdma_writes_ordering: c_int,
    pub memory_pool_supported_handle_types: c_uint,
    pub deferred_mapping_cuda_array_supported: c_int,
    pub ipc_event_supported: c_int,
    pub cluster_launch: c_int,
    pub unified_function_pointers: c_int,
    pub device_numa_config: c_int,
    pub device_numa_id: c_int,
    pub mps_enabled: c_int,
    pub host_numa_id: c_int,
    pub gpu_pci_device_id: c_uint,
    pub gpu_pci_subsystem_id: c_uint,
    pub host_numa_multinode_ipc_supported: c_int,
    pub reserved: [c_int; 56],
}

impl Properties {
    fn of(session: &Session, device: u32) -> Result<Self, Code> {
        let facts = session.device(device)?;
        // SAFETY: all fields are numbers, for which zeros are a value.
        let mut all: Self = unsafe { std::mem::zeroed() };
        for (place, letter) in all.name.iter_mut().zip(facts.name.bytes().take(255)) {
            *place = letter as c_char;
        }
        let of = |number| session.attribute_or_zero(device, number);
        let size = |number| usize::try_from(of(number)).unwrap_or(0);
        let three = |first: i32| [of(first), of(first + 1), of(first + 2)];
        all.uuid = facts.uuid;
        all.total_global_mem = facts.memory as usize;
        all.shared_mem_per_block = size(at::SHARED_PER_BLOCK);
        all.regs_per_block = of(at::REGISTERS_PER_BLOCK);
        all.warp_size = of(at::WARP);
        all.mem_pitch = size(at::PITCH_MAX);
        all.max_threads_per_block = of(at::THREADS_PER_BLOCK);
        all.max_threads_dim = three(at::BLOCK_X);
        all.max_grid_size = three(at::GRID_X);
        all.total_const_mem = size(at::CONSTANT);
        all.major = facts.capability.0 as c_int;
        all.minor = facts.capability.1 as c_int;
        all.texture_alignment = size(at::TEXTURE_ALIGNMENT);
        all.texture_pitch_alignment = size(at::TEXTURE_PITCH_ALIGNMENT);
        all.multi_processor_count = of(at::MULTIPROCESSORS);
        all.integrated = of(at::INTEGRATED);
        all.surface_alignment = size(at::SURFACE_ALIGNMENT);
        all.concurrent_kernels = of(at::CONCURRENT_KERNELS);
        all.ecc_enabled = of(at::ECC);
        all.pci_bus_id = of(at::PCI_BUS);
        all.pci_device_id = of(at::PCI_DEVICE);
        all.pci_domain_id = of(at::PCI_DOMAIN);
        all.async_engine_count = of(at::ASYNC_ENGINES);
        all.unified_addressing = of(at::UNIFIED_ADDRESSING);
        all.memory_bus_width = of(at::BUS_WIDTH);
        all.l2_cache_size = of(at::L2_CACHE);
        all.persisting_l2_cache_max_size = of(at::PERSISTING_L2);
        all.max_threads_per_multi_processor = of(at::THREADS_PER_MULTIPROCESSOR);
        all.stream_priorities_supported = of(at::STREAM_PRIORITIES);
        all.global_l1_cache_supported = of(at::GLOBAL_L1);
        all.local_l1_cache_supported = of(at::LOCAL_L1);
        all.shared_mem_per_multiprocessor = size(at::SHARED_PER_MULTIPROCESSOR);
        all.regs_per_multiprocessor = of(at::REGISTERS_PER_MULTIPROCESSOR);
        all.compute_preemption_supported = of(at::COMPUTE_PREEMPTION);
        all.cooperative_launch = of(at::COOPERATIVE_LAUNCH);
        all.shared_mem_per_block_optin = size(at::SHARED_PER_BLOCK_OPTIN);
        all.max_blocks_per_multi_processor = of(at::BLOCKS_PER_MULTIPROCESSOR);
        all.access_policy_max_window_size = of(at::ACCESS_POLICY_WINDOW);
        all.reserved_shared_mem_per_block = size(at::RESERVED_SHARED);
        all.host_register_supported = of(at::HOST_REGISTER);
        all.memory_pools_supported = of(at::MEMORY_POOLS);
        all.cluster_launch = of(at::CLUSTER_LAUNCH);
        all.device_numa_id = -1;
        all.host_numa_id = -1;
        Ok(all)
    }
}

/// What a device is, as CUDA 13 lays it out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGetDeviceProperties(place: *mut Properties, device: c_int) -> Code {
    with_session(|session| {
        let device = super::device::number(session, device)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, Properties::of(session, device)?) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn fields_lie_where_the_compiler_of_cuda_13_looks_for_them() {
        assert_eq!(offset_of!(Properties, total_global_mem), 288);
        assert_eq!(offset_of!(Properties, major), 360);
        assert_eq!(offset_of!(Properties, multi_processor_count), 384);
        assert_eq!(offset_of!(Properties, surface_alignment), 552);
        assert_eq!(offset_of!(Properties, shared_mem_per_block_optin), 672);
        assert_eq!(offset_of!(Properties, reserved), 784);
        assert_eq!(size_of::<Properties>(), 1008);
    }
}
