//! Images made by hand: kernels, parameters and variables that are read of them, and what becomes of damaged ones.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

mod images;

use hinterland_fatbin::{ImageError, Kernels, Parameter, Space};
use images::{PTX, cubin, large_parameter, parameter, value, words};
use proptest::prelude::*;

fn pairs(parameters: &[Parameter]) -> Vec<(u32, u32)> {
    parameters.iter().map(|parameter| (parameter.offset, parameter.size)).collect()
}

fn refusal(image: &[u8]) -> String {
    let error = Kernels::of_image(image).unwrap_err().to_string();
    assert!(error.contains("(hint: "), "{error}");
    error
}

#[test]
fn parameters_of_assembly_lie_where_a_compiler_puts_them() {
    let found = Kernels::of_image(PTX.as_bytes()).unwrap();
    let names: Vec<_> = found.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
    assert_eq!(names, ["nothing", "mixed", "_Zshape"]);
    let mixed = found.kernel("mixed").unwrap();
    assert_eq!(pairs(&mixed.parameters), [(0, 1), (8, 16), (24, 2), (32, 32), (64, 8), (72, 3), (76, 4)]);
    assert_eq!((mixed.parameter_bytes, mixed.threads_max, mixed.block), (80, Some(256), None));
    assert_eq!((mixed.cluster, mixed.static_shared_bytes), (Some([2, 1, 1]), Some(48)));
    assert_eq!((mixed.registers, mixed.local_bytes), (None, None));
    assert_eq!(mixed.parameter_alignments, [1, 8, 2, 16, 8, 1, 4]);
    assert_eq!(mixed.parameters_at(0x160), mixed.parameters, "16 is the most that is the same everywhere");
    let shape = found.kernel("_Zshape").unwrap();
    assert_eq!((shape.block, shape.threads_max), (Some([64, 1, 1]), Some(64)));
    assert_eq!(found.kernel("nothing").unwrap().parameter_bytes, 0);
    assert_eq!(found.target.unwrap().to_string(), "sm_90a");
}

#[test]
fn parameters_of_more_alignment_than_16_move_with_their_start() {
    let text = ".version 9.0\n.entry k(.param .u32 a, .param .align 64 .b8 b[64], .param .u64 c) { ret; }";
    let found = Kernels::of_image(text.as_bytes()).unwrap();
    assert_eq!(pairs(&found.kernels[0].parameters), [(0, 4), (64, 64), (128, 8)]);
    assert_eq!(pairs(&found.kernels[0].parameters_at(0x160)), [(0, 4), (32, 64), (96, 8)]);
    assert_eq!(pairs(&found.kernels[0].parameters_at(0x210)), [(0, 4), (48, 64), (112, 8)]);
}

#[test]
fn variables_of_assembly_have_their_sizes() {
    let found = Kernels::of_image(PTX.as_bytes()).unwrap();
    let told: Vec<_> =
        found.variables.iter().map(|it| (it.name.as_str(), it.size, it.space, it.is_managed)).collect();
    assert_eq!(
        told,
        [
            ("counter", 4, Space::Global, false),
            ("table", 400, Space::Global, false),
            ("weights", 128, Space::Constant, false),
            ("managed", 4, Space::Global, true),
            ("wide", 16, Space::Global, false),
        ]
    );
}

#[test]
fn machine_code_says_all_of_a_kernel() {
    let attributes = [
        value(0x1b, 255),
        parameter(1, 8, 16),
        parameter(0, 0, 1),
        value(0x19, 24),
        words(0x0a, &[7, 24 << 16 | 0x210]),
        words(0x05, &[128, 2, 1]),
        words(0x3d, &[2, 1, 1]),
        vec![1, 0x3e, 0, 0],
    ];
    let found = Kernels::of_image(&cubin("_Z5mixed", &attributes)).unwrap();
    assert_eq!(found.kernels.len(), 1);
    let kernel = found.kernel("_Z5mixed").unwrap();
    assert_eq!(pairs(&kernel.parameters), [(0, 1), (8, 16)]);
    assert_eq!((kernel.parameter_bytes, kernel.registers, kernel.local_bytes), (24, Some(10), Some(400)));
    assert_eq!((kernel.static_shared_bytes, kernel.threads_max), (Some(24), Some(256)));
    assert_eq!((kernel.block, kernel.cluster), (None, Some([2, 1, 1])));
    assert_eq!(kernel.parameters_start, Some(0x210));
    let sizes: Vec<_> = found.variables.iter().map(|it| (it.name.as_str(), it.size)).collect();
    assert_eq!(sizes, [("counter", 4), ("weights", 128), ("shared", 4)]);
    assert_eq!(found.variable("weights").unwrap().space, Space::Constant);
    assert!(found.variable("shared").unwrap().is_managed && !found.variable("counter").unwrap().is_managed);
    assert_eq!(found.target.unwrap().to_string(), "sm_90");
}

#[test]
fn kernels_with_more_than_four_kibibytes_of_parameters_are_read() {
    let attributes = [large_parameter(1, 4800, 8), large_parameter(0, 0, 4800), value(0x19, 4808)];
    let found = Kernels::of_image(&cubin("big", &attributes)).unwrap();
    assert_eq!(pairs(&found.kernels[0].parameters), [(0, 4800), (4800, 8)]);
}

/// Images lie at any address of whoever sends them.
#[test]
fn machine_code_is_read_wherever_it_lies() {
    let image = cubin("somewhere", &[parameter(0, 0, 8)]);
    let mut room = vec![0; image.len() + 8];
    for start in 0..8 {
        room[start..start + image.len()].copy_from_slice(&image);
        let found = Kernels::of_image(&room[start..start + image.len()]).unwrap();
        assert_eq!(pairs(&found.kernels[0].parameters), [(0, 8)]);
    }
}

#[test]
fn parameters_that_make_no_sense_are_refused() {
    let told = |attributes: &[Vec<u8>]| refusal(&cubin("odd", attributes));
    assert!(told(&[parameter(1, 0, 8)]).contains("kernel odd: parameter 0 is missing"));
    assert!(
        told(&[parameter(0, 0, 8), parameter(0, 8, 8)]).contains("parameter 1 is missing or there twice")
    );
    assert!(told(&[parameter(0, 0, 8), parameter(1, 4, 8)]).contains("lies within the one before it"));
    assert!(told(&[parameter(0, 0, 8), value(0x19, 4)]).contains("end at 8 of 4 bytes"));
    assert!(told(&[large_parameter(0, 40000, 8)]).contains("end at 40008"));
    assert!(told(&[vec![4, 0x17, 12, 0, 1]]).contains("longer than its section"));
    assert!(told(&[vec![4, 0x17, 4, 0, 1, 2, 3, 4]]).contains("cut off"));
}

#[test]
fn what_is_no_image_is_refused_with_its_reason() {
    assert_eq!(Kernels::of_image(b""), Err(ImageError::Form));
    assert_eq!(Kernels::of_image(b"\x50\xed\x55\xba"), Err(ImageError::Form));
    let mut other_machine = cubin("odd", &[]);
    other_machine[18] = 62;
    assert!(refusal(&other_machine).contains("for machine 62"));
    assert!(refusal(b"\x7fELF").contains("cannot be read"));
    let told = |text: &str| refusal(format!(".version 9.0\n\n{text}").as_bytes());
    assert!(told(".entry k(.param .u32 a").contains("line 3"));
    assert!(told(".entry k(.reg .u32 a) {}").contains("does not start with .param"));
    assert!(told(".entry k(.param .unknown a) {}").contains("has no type"));
    assert!(told(".entry k(.param .align 3 .b8 a[4]) {}").contains("3 is no alignment"));
    assert!(told(".entry k(.param .b8 a[99999]) {}").contains("kernel k: parameter a"));
    assert!(told(".entry k(.param .b8 a[0]) {}").contains("of 0 bytes"));
    assert!(told(".entry k(.param .b8 a[99999999999][99999999999]) {}").contains("too large"));
    assert!(told(".entry k() { .shared .b8 a[99999999999]; }").contains("shared memory"));
    assert!(told(".global .u32 5;").contains("no name"));
    assert!(told(".entry k() { {").contains("ends within"));
}

/// Sections may share a name and bytes, so that a small file would be read for ever.
#[test]
fn a_file_whose_parts_lie_upon_each_other_is_refused() {
    let mut image = cubin(&"a".repeat(10_000), &[]);
    let table = usize::try_from(u64::from_le_bytes(image[40..48].try_into().unwrap())).unwrap();
    let info = image[table + 5 * 64..table + 6 * 64].to_vec();
    (0..1000).for_each(|_| image.extend(&info));
    assert!(Kernels::of_image(&image).is_ok());
    image[60..62].copy_from_slice(&1011u16.to_le_bytes());
    assert!(refusal(&image).contains("lie upon each other"));
}

proptest! {
    #[test]
    fn random_text_never_panics(words in proptest::collection::vec(prop::sample::select(vec![
        ".entry", ".param", ".align", ".global", ".const", ".shared", ".extern", ".u32", ".b8", ".ptr", ".v4", "name",
        "16", "0x", "99999999999999999999", "{", "}", "(", ")", "[", "]", ",", ";", "=", "\"", "//", "/*", "*/", "\n",
        ".maxntid", ".reqntid", ".target", "sm_90", ".attribute", ".managed", "/", "é", "%", "\0",
    ]), 0..60)) {
        let _ = Kernels::of_image(format!(".version 9.0\n{}", words.join(" ")).as_bytes());
        let _ = Kernels::of_image(format!(".version 9.0\n.entry k({}", words.concat()).as_bytes());
    }

    #[test]
    fn mutated_images_never_panic(
        is_assembly in any::<bool>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let attributes = [parameter(0, 0, 8), parameter(1, 8, 4), value(0x19, 12), words(0x05, &[128, 1, 1])];
        let mut image = if is_assembly { PTX.as_bytes().to_vec() } else { cubin("mutated", &attributes) };
        for (at, byte) in changes {
            let at = at.index(image.len());
            image[at] = byte;
        }
        if let Some(cut) = cut {
            image.truncate(cut.index(image.len()));
        }
        if let Ok(found) = Kernels::of_image(&image) {
            prop_assert!(found.kernels.len() + found.variables.len() <= image.len());
            for kernel in found.kernels {
                let ends = kernel.parameters.iter().map(|it| it.offset + it.size);
                prop_assert!(ends.max().unwrap_or(0) <= kernel.parameter_bytes);
            }
        }
    }
}
