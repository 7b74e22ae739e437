//! Whatever bytes come, a fat binary and its images end in kernels or an error: never a panic, never more memory than the limits say.
//!
//! `HINTERLAND_FUZZ_SECONDS=60 cargo test --release -p hinterland-fatbin --test fuzz` runs each target for a minute.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod images;
#[path = "../../proto/tests/mutate/mod.rs"]
mod mutate;

use hinterland_fatbin::{
    Capability, Containers, IMAGE_BYTES_MAX, Kernels, choose, container_bytes, entries, repack,
};
use images::{
    ASSEMBLY, LZ4, MACHINE_CODE, PTX, ZSTANDARD, container, large_parameter, packed, parameter, value, words,
};
use mutate::fuzz;

fn cubins() -> Vec<Vec<u8>> {
    let small = [parameter(0, 0, 8), parameter(1, 8, 4), value(0x19, 12), words(0x05, &[128, 1, 1])];
    let large = [large_parameter(0, 0, 4800), large_parameter(1, 4800, 8), value(0x19, 4808)];
    vec![images::cubin("kernel", &small), images::cubin("_Z5largePv", &large)]
}

#[test]
fn fuzz_containers_give_images_within_their_limits() {
    let code = cubins().remove(0);
    let seeds = [
        container(&[packed(ASSEMBLY, 75, LZ4, PTX.as_bytes()), packed(MACHINE_CODE, 90, ZSTANDARD, &code)]),
        container(&[packed(ASSEMBLY, 90, ZSTANDARD, PTX.as_bytes())]),
        container(&[packed(MACHINE_CODE, 120, LZ4, &code)]),
        container(&[packed(MACHINE_CODE, 80, 0, b"short"), packed(8, 80, 0, b"")]),
    ];
    fuzz(&seeds, |_, bytes| {
        let _ = container_bytes(&bytes);
        assert!(Containers::new(&bytes).flatten().map(<[u8]>::len).sum::<usize>() <= bytes.len());
        let Ok(found) = entries(&bytes) else { return };
        assert!(found.iter().map(|entry| entry.raw.len()).sum::<usize>() <= bytes.len());
        for entry in &found {
            let Ok(image) = entry.image() else { continue };
            assert!(image.len() <= IMAGE_BYTES_MAX.max(bytes.len()));
            let _ = Kernels::of_image(&image);
        }
        let chosen = choose(&found, Capability::new(9, 0));
        assert_eq!(entries(&repack(chosen.as_slice())).unwrap().len(), chosen.iter().count());
    });
}

fn check(image: &[u8]) {
    let Ok(found) = Kernels::of_image(image) else { return };
    assert!(found.kernels.len() + found.variables.len() <= image.len());
    let names = found.kernels.iter().map(|kernel| kernel.name.len());
    assert!(names.sum::<usize>() <= image.len() * 4);
    for kernel in &found.kernels {
        let ends = kernel.parameters.iter().map(|parameter| parameter.offset + parameter.size);
        assert!(ends.max().unwrap_or(0) <= kernel.parameter_bytes);
    }
}

#[test]
fn fuzz_machine_code_gives_kernels_whose_parameters_lie_within_their_buffer() {
    fuzz(&cubins(), |_, bytes| check(&bytes));
}

#[test]
fn fuzz_assembly_gives_kernels_whose_parameters_lie_within_their_buffer() {
    fuzz(&[PTX.as_bytes().to_vec()], |_, bytes| check(&bytes));
}
