//! Copies against plain ones, on what stands in for a driver: every alignment, order, and what lives how long.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

use hinterland_gpu::stand_in::StandIn;
use hinterland_gpu::{
    Copier, DeviceMemory, Direction, Gpu, GpuError, Piece, Plain, Registered, Stream, StreamHandle,
};
use std::sync::Arc;

/// A GPU, its kernel, memory on both sides and a stream.
struct Scene {
    copier: Arc<Copier>,
    host: Arc<Registered>,
    device: Arc<DeviceMemory>,
    stream: Arc<Stream>,
}

const BYTES: usize = 1 << 20;

impl Scene {
    fn new(stand_in: &StandIn) -> Self {
        let gpu = Gpu::open(None, Some(stand_in.path())).unwrap();
        assert!(gpu.is_stand_in());
        Self {
            copier: Copier::new(&gpu, Some(stand_in.path())).unwrap(),
            host: Arc::new(Registered::anonymous(&gpu, BYTES).unwrap()),
            device: Arc::new(DeviceMemory::new(&gpu, BYTES).unwrap()),
            stream: Arc::new(Stream::new(&gpu).unwrap()),
        }
    }

    /// A piece between offsets of the two memories.
    fn piece(&self, host: usize, device: usize, bytes: usize, stride: i64, count: usize) -> Piece {
        Piece {
            linear: self.host.address(host, bytes * count).unwrap(),
            start: self.device.address(device, 0).unwrap(),
            stride,
            bytes: bytes as u64,
            count: count as u64,
        }
    }

    fn copy(&self, direction: Direction, pieces: &[Piece]) {
        let kept = (Arc::clone(&self.host), Arc::clone(&self.device), Arc::clone(&self.stream));
        // SAFETY: `piece` keeps both sides inside of the memories, which are kept.
        let launch = unsafe { self.copier.copy(direction, pieces, self.stream.handle(), kept) };
        launch.unwrap().wait().unwrap();
    }

    fn host_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        self.host.memory().read_at(0, &mut bytes).unwrap();
        bytes
    }

    fn device_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        self.device.read(0, &mut bytes).unwrap();
        bytes
    }

    fn fill(&self) {
        self.host.memory().write_at(0, &noise(1)).unwrap();
        self.device.write(0, &noise(2)).unwrap();
    }
}

fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..BYTES).map(|_| next()).collect()
}

/// Lengths and alignments that meet every branch of the kernel: words of each width, heads, tails, several tiles.
const SHAPES: [(usize, usize, usize, i64, usize); 14] = [
    (0, 0, 20 << 10, 40 << 10, 12),
    (0, 64, 160, 320, 300),
    (5, 5, 4096, 8192, 3),
    (5, 21, 12_289, 16_384, 3),
    (3, 7, 4099, 8196, 3),
    (2, 7, 777, 900, 5),
    (1, 0, 1, 3, 100),
    (0, 1, 15, 16, 9),
    (16, 16, 16, 16, 1000),
    (8, 0, 4096, 4096, 2),
    (12, 4, 8191, 8191, 3),
    (0, 500_000, 4096, -8192, 30),
    (7, 11, 300_001, 0, 1),
    (9, 9, 3, 7, 4095),
];

#[test]
fn fragments_of_any_alignment_are_copied_and_nothing_beside_them() {
    let stand_in = StandIn::alone();
    let scene = Scene::new(&stand_in);
    for (host, device, bytes, stride, count) in SHAPES {
        let at = |index: usize| device.wrapping_add_signed(stride as isize * index as isize);
        for direction in [Direction::Scatter, Direction::Gather] {
            scene.fill();
            let (mut on_host, mut on_device) = (noise(1), noise(2));
            for index in 0..count {
                let (linear, place) = (host + index * bytes, at(index));
                if direction == Direction::Scatter {
                    on_device[place..place + bytes].copy_from_slice(&on_host[linear..linear + bytes]);
                } else {
                    on_host[linear..linear + bytes].copy_from_slice(&on_device[place..place + bytes]);
                }
            }
            scene.copy(direction, &[scene.piece(host, device, bytes, stride, count)]);
            let shape = (host, device, bytes, stride, count, direction);
            assert!(scene.device_bytes() == on_device, "memory of the GPU, {shape:?}");
            assert!(scene.host_bytes() == on_host, "memory of the host, {shape:?}");
        }
    }
}

#[test]
fn all_pieces_of_a_batch_are_one_launch() {
    let stand_in = StandIn::alone();
    let scene = Scene::new(&stand_in);
    scene.fill();
    // 3000 pieces, more than the smallest table has room for, backwards in the GPU's memory.
    let pieces: Vec<Piece> = (0..3000)
        .map(|index| scene.piece(index * 128, (2999 - index) * 256 + 3, 100 + index % 29, 0, 1))
        .collect();
    let mut expected = noise(2);
    for index in 0..3000 {
        let (from, to, bytes) = (index * 128, (2999 - index) * 256 + 3, 100 + index % 29);
        expected[to..to + bytes].copy_from_slice(&noise_part(from, bytes));
    }
    let before = stand_in.launches();
    scene.copy(Direction::Scatter, &pieces);
    assert_eq!(stand_in.launches() - before, 1);
    assert!(scene.device_bytes() == expected);
    scene.copy(Direction::Scatter, &[]);
    assert_eq!(stand_in.launches() - before, 1, "a batch of nothing is not launched");
}

fn noise_part(from: usize, bytes: usize) -> Vec<u8> {
    thread_local!(static NOISE: Vec<u8> = noise(1));
    NOISE.with(|noise| noise[from..from + bytes].to_vec())
}

#[test]
fn a_launch_is_done_when_the_gpu_says_so_and_tables_of_others_are_left_alone() {
    let stand_in = StandIn::alone();
    let scene = Scene::new(&stand_in);
    scene.fill();
    stand_in.close();
    let begin = |host, device| {
        let pieces = [scene.piece(host, device, 4096, 0, 1)];
        // SAFETY: as in `copy`; the memories outlive the launches here.
        unsafe { scene.copier.copy(Direction::Scatter, &pieces, scene.stream.handle(), ()) }.unwrap()
    };
    let (mut first, mut second) = (begin(0, 8192), begin(4096, 0));
    assert!(!first.is_done().unwrap() && !second.is_done().unwrap());
    assert!(scene.device_bytes() == noise(2), "nothing has happened yet");
    // Its table, its launch and the one group of it, its event.
    stand_in.allow(4);
    assert!(first.is_done().unwrap() && !second.is_done().unwrap());
    // The first one's tables may be used again while the second one is under way.
    let third = begin(8192, 16_384);
    stand_in.open();
    second.wait().unwrap();
    third.wait().unwrap();
    let mut expected = noise(2);
    for (from, to) in [(0, 8192), (4096, 0), (8192, 16_384)] {
        expected[to..to + 4096].copy_from_slice(&noise(1)[from..from + 4096]);
    }
    assert!(scene.device_bytes() == expected);
}

#[test]
fn what_a_launch_uses_lives_until_it_is_done() {
    let stand_in = StandIn::alone();
    let scene = Scene::new(&stand_in);
    let before = stand_in.ranges();
    let memory = Arc::new(DeviceMemory::new(scene.copier.gpu(), 8192).unwrap());
    let target = memory.address(0, 8192).unwrap();
    stand_in.close();
    let piece = Piece { start: target, ..scene.piece(0, 0, 8192, 0, 1) };
    // SAFETY: the memory is kept, and as long as the piece.
    let launch = unsafe { scene.copier.copy(Direction::Scatter, &[piece], scene.stream.handle(), memory) };
    let launch = launch.unwrap();
    std::thread::scope(|scope| {
        let dropping = scope.spawn(move || drop(launch));
        stand_in.allow(3);
        assert!(scene.copier.gpu().check_address(target).is_ok(), "it was freed before the launch was done");
        stand_in.open();
        dropping.join().unwrap();
    });
    assert!(matches!(scene.copier.gpu().check_address(target), Err(GpuError::Address { .. })));
    // The launch's tables are kept for the next one.
    assert_eq!(stand_in.ranges(), before + 2);
    drop(scene);
    assert_eq!(stand_in.ranges(), 0, "everything is given back");
}

#[test]
fn plain_copies_do_the_same() {
    let stand_in = StandIn::alone();
    let scene = Scene::new(&stand_in);
    scene.fill();
    let plain = Plain { host: &scene.host, device: &scene.device, stream: &scene.stream };
    let fragments = || (0..50).map(|index| (index * 1000, 500_000 - index * 2000, 1000));
    let mut expected = noise(2);
    for (from, to, bytes) in fragments() {
        expected[to..to + bytes].copy_from_slice(&noise_part(from, bytes));
    }
    plain.copy_each(Direction::Scatter, fragments()).unwrap();
    assert!(scene.device_bytes() == expected);
    scene.host.memory().fill(0, BYTES, 0).unwrap();
    plain.copy_each(Direction::Gather, fragments()).unwrap();
    assert_eq!(scene.host_bytes()[..50_000], noise(1)[..50_000]);
    let refused = plain.copy_each(Direction::Scatter, [(BYTES - 1, 0, 2)]);
    assert!(matches!(refused, Err(GpuError::Outside { .. })));
}

#[test]
fn what_is_missing_is_told_with_what_to_do() {
    let stand_in = StandIn::alone();
    let words = |result: Result<Arc<Gpu>, GpuError>| result.err().unwrap().to_string();
    let open = || Gpu::open(None, Some(stand_in.path()));
    let text = words(Gpu::open(None, Some("/no/such/libcuda.so.1".as_ref())));
    assert!(text.contains("no CUDA driver") && text.contains("hint: install the NVIDIA driver"), "{text}");
    // A library that is no driver: libc.
    let text = words(Gpu::open(None, Some("libc.so.6".as_ref())));
    assert!(text.contains("too old") && text.contains("hint:"), "{text}");
    stand_in.lack(c"driver-version");
    let text = words(open());
    assert!(text.contains("it has CUDA 10.2, and CUDA 11.4 or later is needed"), "{text}");
    stand_in.lack(c"gpu");
    assert!(matches!(open().err(), Some(GpuError::NoDevice { count: 0, .. })));
    stand_in.lack(c"nothing");
    let text = words(Gpu::open(Some(7), Some(stand_in.path())));
    assert!(text.contains("1 GPUs, so there is no GPU 7") && text.contains("nvidia-smi -L"), "{text}");

    let gpu = open().unwrap();
    stand_in.lack(c"compiler");
    let text = Copier::new(&gpu, Some(stand_in.path())).err().unwrap().to_string();
    assert!(text.contains("capability 9.0: wrong (hint: an NVRTC as new as the driver"), "{text}");
    stand_in.lack(c"registration");
    let text = Registered::anonymous(&gpu, 4096).err().unwrap().to_string();
    assert!(text.contains("4096 bytes of host memory") && text.contains("hint: allow the program"), "{text}");
    assert!(matches!(gpu.check_address(0x1234), Err(GpuError::Address { address: 0x1234 })));
}

#[test]
fn a_stream_of_the_program_and_any_thread_will_do() {
    let stand_in = StandIn::alone();
    let scene = Scene::new(&stand_in);
    scene.fill();
    let pieces = [scene.piece(0, 0, BYTES, 0, 1)];
    std::thread::scope(|scope| {
        let begin = scope.spawn(|| {
            // SAFETY: as in `copy`; the default stream is always there.
            unsafe { scene.copier.copy(Direction::Scatter, &pieces, StreamHandle::DEFAULT, ()) }.unwrap()
        });
        begin.join().unwrap().wait().unwrap();
    });
    assert!(scene.device_bytes() == noise(1));
}
