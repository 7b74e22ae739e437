//! Which expert a tensor belongs to, by its name.

use std::collections::BTreeMap;

/// What a name says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Named {
    /// The tensor holds one expert's weights.
    One(u32),
    /// The tensor may hold all experts of its block, one behind the other.
    All,
}

/// Splits a GGUF name into its block and what it holds: `blk.3.ffn_up_exps.weight` holds all experts of
/// `blk.3`, `blk.3.ffn_up.7.weight` (files of 2023) one; other names hold none.
pub(super) fn of_gguf(name: &str) -> Option<(&str, Named)> {
    let rest = name.strip_prefix("blk.")?;
    let (number, rest) = rest.split_once('.')?;
    let block = &name[.."blk.".len() + number.len()];
    let (tensor, rest) = rest.split_once('.')?;
    let matrix = tensor.strip_prefix("ffn_")?;
    if matrix.ends_with("_exps") {
        return Some((block, Named::All));
    }
    let (expert, _) = rest.split_once('.')?;
    let is_matrix = matches!(matrix, "gate" | "up" | "down");
    is_matrix.then_some((block, Named::One(expert.parse().ok()?)))
}

/// Splits a safetensors name at its component `experts`: what stands before is the block; a number behind
/// it is the expert (`model.layers.3.mlp.experts.7.up_proj.weight`,
/// `model.layers.3.block_sparse_moe.experts.7.w1.weight`), anything else means all of them
/// (`model.layers.3.mlp.experts.gate_up_proj`). Shared experts have another component and hold none.
pub(super) fn of_safetensors(name: &str) -> Option<(&str, Named)> {
    let at = name.find(".experts.")?;
    let behind = &name[at + ".experts.".len()..];
    let first = behind.split('.').next().unwrap_or(behind);
    let named = first.parse().map_or(Named::All, Named::One);
    Some((&name[..at], named))
}

/// Numbers blocks as they first appear.
#[derive(Debug, Default)]
pub(super) struct Blocks(BTreeMap<String, u32>);

impl Blocks {
    pub(super) fn number(&mut self, block: &str) -> u32 {
        if let Some(&number) = self.0.get(block) {
            return number;
        }
        // There are at most TENSORS_MAX names: the cast loses nothing.
        let number = self.0.len() as u32;
        self.0.insert(block.to_owned(), number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gguf_names_tell_experts_from_shared_and_dense_tensors() {
        assert_eq!(of_gguf("blk.3.ffn_up_exps.weight"), Some(("blk.3", Named::All)));
        assert_eq!(of_gguf("blk.13.ffn_gate_up_exps.weight"), Some(("blk.13", Named::All)));
        assert_eq!(of_gguf("blk.3.ffn_down.17.weight"), Some(("blk.3", Named::One(17))));
        let dense = [
            "blk.3.ffn_up.weight",
            "blk.3.ffn_up_shexp.weight",
            "blk.3.ffn_gate_inp.weight",
            "output.weight",
            "blk.",
        ];
        for name in dense {
            assert_eq!(of_gguf(name), None, "{name}");
        }
    }

    #[test]
    fn safetensors_names_tell_experts_from_shared_and_dense_tensors() {
        let one = "model.layers.3.mlp.experts.7.up_proj.weight";
        assert_eq!(of_safetensors(one), Some(("model.layers.3.mlp", Named::One(7))));
        let mixtral = "model.layers.31.block_sparse_moe.experts.0.w2.weight";
        assert_eq!(of_safetensors(mixtral), Some(("model.layers.31.block_sparse_moe", Named::One(0))));
        let fused = "model.layers.0.mlp.experts.gate_up_proj";
        assert_eq!(of_safetensors(fused), Some(("model.layers.0.mlp", Named::All)));
        for name in
            ["model.layers.3.mlp.shared_experts.up_proj.weight", "lm_head.weight", "experts", ".experts"]
        {
            assert_eq!(of_safetensors(name), None, "{name}");
        }
    }

    #[test]
    fn a_second_model_in_the_file_has_blocks_of_its_own() {
        let mut blocks = Blocks::default();
        let numbers =
            ["model.layers.0.mlp", "mtp.layers.0.mlp", "model.layers.0.mlp"].map(|name| blocks.number(name));
        assert_eq!(numbers, [0, 1, 0]);
    }
}
