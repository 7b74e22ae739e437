//! Functions of `libcuda`, as CUDA's documentation describes them. What differs is said at the function.

/// Functions that differ from the runtime's in nothing but the name, and in that they keep no error for the thread.
macro_rules! same {
    ($( $(#[doc = $doc:literal])+ $name:ident($($argument:ident: $kind:ty),*) = $module:ident::$runtime:ident; )*) => {$(
        $(#[doc = $doc])+
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> Code {
            // SAFETY: as documented. The runtime's function may be a safe one.
            #[allow(unused_unsafe)]
            $crate::core::thread::without_record(|| unsafe { $module::$runtime($($argument),*) })
        }
    )*};
}

pub mod batch;
pub mod context;
pub mod copy;
pub mod device;
pub mod entry;
pub mod launch;
pub mod memory;
pub mod module;
pub mod node;
pub mod per_thread;
pub mod pool;
pub mod stream;
pub mod tensor;
