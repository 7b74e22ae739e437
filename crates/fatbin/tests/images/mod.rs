//! Fat binaries and images made by hand, byte by byte, so that tests need no compiler.
#![allow(dead_code, reason = "each test file uses a part")]

pub const ASSEMBLY: u16 = 1;
pub const MACHINE_CODE: u16 = 2;
pub const LZ4: u64 = 0x2000;
pub const ZSTANDARD: u64 = 0x8000;
pub const LETTER_A: u64 = 0x10_0000;
pub const LETTER_F: u64 = 0x20_0000;

/// PTX with parameters of many shapes, and what a compiler makes of them: offset and size.
pub const PTX: &str = r#"
// .entry in_a_comment(
.version 9.0
.target sm_90a, texmode_independent
.address_size 64
	/* .entry neither( */
.file 1 "a \ path with .entry words"
.visible .global .align 4 .u32 counter;
.global .align 4 .b8 table[40][10] = {1, 2, {3, 4}};
.extern .global .align 4 .b8 elsewhere[];
.const .align 8 .b8 weights[0x80];
.global .attribute(.managed) .align 4 .u32 managed;
.global .v4 .f32 wide;
.global .texref texture;
.extern .shared .align 16 .b8 dynamic[];
.func (.param .b32 result) helper(.param .b32 value)
{
	.shared .align 4 .b8 not_of_a_kernel[64];
	ret;
}
.visible .entry nothing() { ret; }
.visible .entry mixed(
	.param .u8 mixed_param_0,
	.param .align 8 .b8 mixed_param_1[16],
	.param .u16 mixed_param_2,
	.param .align 16 .b8 mixed_param_3[32],
	.param .u64 .ptr .global .align 256 mixed_param_4,
	.param .align 1 .b8 mixed_param_5[3],
	.param .f32 mixed_param_6
)
.maxntid 128, 2
.minnctapersm 2
.reqnctapercluster 2, 1, 1
.pragma "nounroll"
{
	.shared .align 1 .b8 odd[3];
	.shared .align 16 .b8 even[32];
	{ .reg .b32 %r<3>; st.shared.u32 [odd], 1; }//}
	ret;
}
.entry _Zshape(.param .b64 p)
.reqntid 64
{ ret; }
.entry declared(.param .b64 p);
.section .debug_info { .b8 1, 2, 3 }
"#;

/// One entry: header of 64 bytes, payload padded to 8.
pub fn entry(kind: u16, number: u32, flags: u64, payload: &[u8], image_bytes: u64) -> Vec<u8> {
    let padded = payload.len().next_multiple_of(8);
    let is_compressed = flags & (LZ4 | ZSTANDARD) != 0;
    let mut bytes = Vec::new();
    bytes.extend(kind.to_le_bytes());
    bytes.extend(0x101u16.to_le_bytes());
    bytes.extend(64u32.to_le_bytes());
    bytes.extend((padded as u64).to_le_bytes());
    bytes.extend(if is_compressed { payload.len() as u32 } else { 0 }.to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend(number.to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend((flags | 0x11).to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend(if is_compressed { image_bytes } else { 0 }.to_le_bytes());
    assert_eq!(bytes.len(), 64);
    bytes.extend(payload);
    bytes.resize(64 + padded, 0);
    bytes
}

/// An entry whose payload is the image, packed as the flags say.
pub fn packed(kind: u16, number: u32, flags: u64, image: &[u8]) -> Vec<u8> {
    let payload = if flags & LZ4 != 0 {
        lz4_flex::block::compress(image)
    } else if flags & ZSTANDARD != 0 {
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        ruzstd::encoding::compress_to_vec(image, level)
    } else {
        image.to_vec()
    };
    entry(kind, number, flags, &payload, image.len() as u64)
}

/// A container of entries.
pub fn container(entries: &[Vec<u8>]) -> Vec<u8> {
    let body = entries.concat();
    let mut bytes = 0xba55_ed50_u32.to_le_bytes().to_vec();
    bytes.extend(1u16.to_le_bytes());
    bytes.extend(16u16.to_le_bytes());
    bytes.extend((body.len() as u64).to_le_bytes());
    bytes.extend(body);
    bytes
}

/// One parameter as an attribute of machine code.
pub fn parameter(ordinal: u16, offset: u16, size: u32) -> Vec<u8> {
    let mut bytes = vec![4, 0x17, 12, 0, 0, 0, 0, 0];
    bytes.extend(ordinal.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes.extend((size << 18 | 0x1f000).to_le_bytes());
    bytes
}

/// One parameter in the form of kernels with many bytes of them.
pub fn large_parameter(ordinal: u16, offset: u16, size: u16) -> Vec<u8> {
    let mut bytes = vec![4, 0x45, 12, 0, 0, 0, 0, 0];
    bytes.extend(ordinal.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes.extend(size.to_le_bytes());
    bytes.extend([0, 5]);
    bytes
}

/// An attribute of format 3: a value of two bytes.
pub fn value(kind: u8, value: u16) -> Vec<u8> {
    [&[3, kind][..], &value.to_le_bytes()].concat()
}

/// An attribute of words.
pub fn words(kind: u8, words: &[u32]) -> Vec<u8> {
    let mut bytes = vec![4, kind];
    bytes.extend((words.len() as u16 * 4).to_le_bytes());
    words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes
}

/// Machine code for 9.0 with one kernel of this name and these attributes, 10 registers, 400 bytes of local and 24 of shared memory,
/// and the variables `counter` (4 bytes, global), `weights` (128, constant), `shared` (4, managed).
pub fn cubin(kernel: &str, attributes: &[Vec<u8>]) -> Vec<u8> {
    let (info, text) = (format!(".nv.info.{kernel}"), format!(".text.{kernel}"));
    let shared = format!(".nv.shared.{kernel}");
    let mut names = Names::default();
    let symbols = [
        names.symbol("", 0, 0, 0, 0),
        names.symbol(kernel, 0x12, 0x10, 6, 128),
        names.symbol("counter", 1, 0, 8, 4),
        names.symbol("weights", 1, 0, 9, 128),
        names.symbol("shared", 1, 4, 8, 4),
        names.symbol("outside", 0x11, 0, 0, 4),
        names.symbol("device_function", 0x12, 0, 6, 16),
    ]
    .concat();
    let all = [words(0x2f, &[1, 10]), words(0x11, &[1, 400])].concat();
    let sections = [
        ("", 0, 0, vec![], 0),
        (".shstrtab", 3, 0, vec![], 0),
        (".strtab", 3, 0, names.bytes, 0),
        (".symtab", 2, 2, symbols, 0),
        (".nv.info", 0x7000_0000, 3, all, 0),
        (&info, 0x7000_0000, 3, attributes.concat(), 0),
        (&text, 1, 3, vec![0; 128], 0),
        (&shared, 8, 0, vec![], 1024 + 24),
        (".nv.global", 8, 0, vec![], 8),
        (".nv.constant3", 1, 0, vec![0; 128], 0),
        (".nv.shared.reserved.0", 8, 0, vec![], 0),
    ];
    elf(&sections)
}

#[derive(Default)]
struct Names {
    bytes: Vec<u8>,
}

impl Names {
    fn symbol(&mut self, name: &str, info: u8, other: u8, section: u16, size: u64) -> Vec<u8> {
        let mut bytes = (self.bytes.len() as u32).to_le_bytes().to_vec();
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        bytes.extend([info, other]);
        bytes.extend(section.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(size.to_le_bytes());
        bytes
    }
}

/// Sections as name, type, link, bytes, and a size for those without bytes.
type Section<'name> = (&'name str, u32, u32, Vec<u8>, u64);

fn elf(sections: &[Section<'_>]) -> Vec<u8> {
    let mut names = Vec::new();
    let mut body = vec![0; 64];
    let mut table = Vec::new();
    let mut all: Vec<Section<'_>> = sections.to_vec();
    all[1].3 = all.iter().flat_map(|section| section.0.bytes().chain([0])).collect();
    for (name, kind, link, bytes, size) in &all {
        body.resize(body.len().next_multiple_of(8), 0);
        table.extend((names.len() as u32).to_le_bytes());
        names.extend(name.bytes().chain([0]));
        table.extend(kind.to_le_bytes());
        table.extend([0; 16]);
        table.extend((body.len() as u64).to_le_bytes());
        table.extend((bytes.len() as u64).max(*size).to_le_bytes());
        table.extend(link.to_le_bytes());
        table.extend([0; 12]);
        table.extend(if *kind == 2 { 24u64 } else { 0 }.to_le_bytes());
        body.extend(bytes);
    }
    body.resize(body.len().next_multiple_of(8), 0);
    let table_at = body.len() as u64;
    body.extend(table);
    body[..20].copy_from_slice(b"\x7fELF\x02\x01\x01\x41\x08\0\0\0\0\0\0\0\x02\0\xbe\0");
    body[20] = 1;
    body[40..48].copy_from_slice(&table_at.to_le_bytes());
    body[48..52].copy_from_slice(&0x0600_5a04_u32.to_le_bytes());
    body[52..54].copy_from_slice(&64u16.to_le_bytes());
    body[58..60].copy_from_slice(&64u16.to_le_bytes());
    body[60..62].copy_from_slice(&(all.len() as u16).to_le_bytes());
    body[62..64].copy_from_slice(&1u16.to_le_bytes());
    body
}
