//! What `hinterland run` is made of: a namespace, a mount, a library, and watching over the program.

pub mod back_end;
pub mod costs;
pub mod cuda;
pub mod far;
pub mod gpu;
pub mod model;
pub mod namespace;
pub mod preload;
pub mod program;
pub mod temporary;
