//! Random writes, cuts and blanks against a plain vector.

use super::*;
use crate::open_files::OpenFile;
use crate::source::ReadAt;
use hinterland_proto::control::ObjectInfo;
use hinterland_types::{ObjectId, ObjectName};
use proptest::prelude::*;

struct Bytes(Vec<u8>);

impl ReadAt for Bytes {
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        let offset = offset as usize;
        buffer.copy_from_slice(&self.0[offset..offset + buffer.len()]);
        Ok(())
    }
}

/// A put that keeps what it was given.
#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    next: usize,
}

impl NewObject for Kept {
    fn object(&self) -> ObjectId {
        ObjectId(7)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), SourceError> {
        self.bytes.resize(self.bytes.len().max(self.next + bytes.len()), 0xee);
        self.bytes[self.next..self.next + bytes.len()].copy_from_slice(bytes);
        self.next += bytes.len();
        Ok(())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        into.copy_from_slice(&self.bytes[offset as usize..offset as usize + into.len()]);
        Ok(())
    }

    fn rename(&mut self, _: &ObjectName, _: &ObjectName) -> Result<(), SourceError> {
        Ok(())
    }

    fn exchange_names(&mut self, _: &ObjectName, _: ObjectId, _: &ObjectName) -> Result<(), SourceError> {
        Ok(())
    }

    fn rewind(&mut self) {
        self.next = 0;
    }

    fn reserve(&mut self, _: u64) -> Result<(), SourceError> {
        Ok(())
    }

    fn is_lost(&self) -> bool {
        false
    }

    fn publish(self: Box<Self>, _: &ObjectName) -> Result<ObjectInfo, SourceError> {
        unreachable!("nothing is published here")
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write { offset: u64, bytes: usize, value: u8 },
    Append { bytes: usize, value: u8 },
    Resize { bytes: u64 },
    Blank { offset: u64, bytes: u64 },
    Push,
}

const LARGEST: u64 = 300_000;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..LARGEST, 1usize..100_000, any::<u8>())
            .prop_map(|(offset, bytes, value)| Step::Write { offset, bytes, value }),
        2 => (1usize..100_000, any::<u8>()).prop_map(|(bytes, value)| Step::Append { bytes, value }),
        2 => (0..LARGEST).prop_map(|bytes| Step::Resize { bytes }),
        1 => (0..LARGEST, 1..100_000u64).prop_map(|(offset, bytes)| Step::Blank { offset, bytes }),
        1 => Just(Step::Push),
    ];
    proptest::collection::vec(step, 0..25)
}

fn take(model: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    model.resize(model.len().max(offset + bytes.len()), 0);
    model[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn check(contents: &Contents, put: &Kept, model: &[u8]) {
    assert_eq!(contents.bytes(), model.len() as u64);
    let mut bytes = vec![0x55; model.len()];
    contents.read(Some(put), 0, &mut bytes).unwrap();
    assert!(bytes == model, "bytes differ");
    if model.len() > 70_000 {
        contents.read(Some(put), 65_530, &mut bytes[..12]).unwrap();
        assert_eq!(bytes[..12], model[65_530..65_542]);
    }
}

proptest! {
    #[test]
    fn a_file_is_what_a_plain_vector_is(base in 0..LARGEST, is_new in any::<bool>(), steps in steps()) {
        let mut model: Vec<u8> = if is_new { Vec::new() } else { (0..base).map(|at| (at % 251) as u8).collect() };
        let mut contents = if is_new {
            Contents::empty()
        } else {
            Contents::of(OpenFile::Remote(Box::new(Bytes(model.clone()))), base)
        };
        let mut put = Kept::default();
        for step in steps {
            match step {
                Step::Write { offset, bytes, value } => {
                    contents.write(Some(&mut put), offset, &vec![value; bytes]).unwrap();
                    take(&mut model, offset as usize, &vec![value; bytes]);
                }
                Step::Append { bytes, value } => {
                    let end = contents.bytes();
                    contents.write(Some(&mut put), end, &vec![value; bytes]).unwrap();
                    take(&mut model, end as usize, &vec![value; bytes]);
                }
                Step::Resize { bytes } => {
                    contents.resize(Some(&mut put), bytes).unwrap();
                    model.resize(bytes as usize, 0);
                }
                Step::Blank { offset, bytes } => {
                    contents.blank(Some(&mut put), offset, bytes).unwrap();
                    let end = (offset + bytes).min(model.len() as u64);
                    if offset < end {
                        model[offset as usize..end as usize].fill(0);
                    }
                }
                Step::Push => {
                    contents.push(&mut put).unwrap();
                    prop_assert!(put.next == model.len() && put.bytes[..put.next] == model[..]);
                }
            }
            check(&contents, &put, &model);
        }
        contents.push(&mut put).unwrap();
        prop_assert!(put.bytes[..put.next] == model[..]);
    }
}

#[test]
fn what_comes_in_order_leaves_memory_and_comes_back_when_it_is_overwritten() {
    let (mut contents, mut put) = (Contents::empty(), Kept::default());
    let mut model = Vec::new();
    let piece: Vec<u8> = (0..1 << 20).map(|at| (at % 253) as u8).collect();
    for _ in 0..40 {
        contents.write(Some(&mut put), model.len() as u64, &piece).unwrap();
        contents.drain(&mut put).unwrap();
        model.extend_from_slice(&piece);
    }
    assert!(contents.needs_pool() && put.next >= 32 << 20);
    check(&contents, &put, &model);
    contents.write(Some(&mut put), 3, b"header").unwrap();
    model[3..9].copy_from_slice(b"header");
    assert!(!contents.needs_pool());
    check(&contents, &put, &model);
    contents.push(&mut put).unwrap();
    assert!(put.bytes[..put.next] == model[..]);
}
