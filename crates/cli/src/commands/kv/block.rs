//! `hinterland kv inspect`: one block.

use crate::context::Context;
use crate::failure::Failure;
use crate::shapes::hexadecimal;
use crate::size::human;
use hinterland_proto::control::KvInspected;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Which block.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The namespace: its number, or the start of its label
    namespace: String,
    /// The key: an even number of hexadecimal digits, or text
    key: String,
}

/// Shows a block.
///
/// # Errors
/// [`Failure`] if it is not there.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let cache = super::open(&arguments.namespace, context)?;
    let bytes = key(&arguments.key);
    let Some(block) = cache.inspect(&bytes)? else {
        let text = format!("there is no block {} in the namespace", hexadecimal(&bytes));
        return Err(Failure::new(
            text,
            "it was never put, or has been evicted: `hinterland kv stat` counts evictions",
        ));
    };
    context.output.either(&value(&bytes, &block), || words(&bytes, &block))?;
    Ok(ExitCode::SUCCESS)
}

/// The bytes of a key as people write it.
fn key(text: &str) -> Vec<u8> {
    let digits: Option<Vec<u8>> = text
        .as_bytes()
        .chunks(2)
        .map(|pair| match pair {
            [_, _] => std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok()),
            _ => None,
        })
        .collect();
    digits.unwrap_or_else(|| text.as_bytes().to_vec())
}

fn value(key: &[u8], block: &KvInspected) -> Value {
    json!({
        "key": hexadecimal(key),
        "slot": block.slot,
        "offset": block.offset,
        "bytes": block.bytes,
        "slot_bytes": block.slot_bytes,
        "generation": block.generation,
        "pins": block.pins,
        "parent": block.parent.as_deref().map(hexadecimal),
        "children": block.children.iter().map(|key| hexadecimal(key)).collect::<Vec<_>>(),
    })
}

fn words(key: &[u8], block: &KvInspected) -> String {
    let parent = block.parent.as_deref().map_or_else(|| "nothing".to_owned(), hexadecimal);
    let mut lines = vec![
        format!("key         {}", hexadecimal(key)),
        format!("size        {} in a slot of {}", human(block.bytes.into()), human(block.slot_bytes)),
        format!("place       slot {}, offset {}, generation {}", block.slot, block.offset, block.generation),
        format!("pins        {}", block.pins),
        format!("follows on  {parent}"),
    ];
    lines.extend(block.children.iter().map(|child| format!("before      {}", hexadecimal(child))));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_digits_if_it_can_be_and_text_else() {
        assert_eq!(key("00ff"), [0, 255]);
        assert_eq!(key("00f"), b"00f");
        assert_eq!(key("block"), b"block");
        assert_eq!(key("\u{e4}1"), "\u{e4}1".as_bytes());
    }
}
