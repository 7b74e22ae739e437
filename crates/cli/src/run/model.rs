//! Models that lie in the pool: how they are named, and as which files the program sees them.

use hinterland_types::ObjectName;
use std::ffi::OsString;
use std::path::Path;

/// What a name of the pool begins with.
const SCHEME: &str = "pool:";

/// A model as `run --model` takes it: `pool:NAME`.
///
/// # Errors
/// What is wrong, and how it is right.
pub fn name(text: &str) -> Result<ObjectName, String> {
    let name = text.strip_prefix(SCHEME).ok_or_else(|| {
        format!("{text} is none of a pool (hint: pool:{text}, as `hinterland ls` shows it)")
    })?;
    ObjectName::parse(name).map_err(|error| error.to_string())
}

/// The program's words, with the path of the file in place of each that names a model, also behind a `=`.
pub fn with_paths(words: &[OsString], models: &[ObjectName], folder: &Path) -> Vec<OsString> {
    words
        .iter()
        .map(|word| word.to_str().and_then(|word| path(word, models, folder)).unwrap_or_else(|| word.clone()))
        .collect()
}

fn path(word: &str, models: &[ObjectName], folder: &Path) -> Option<OsString> {
    let of = |value: &str| {
        let name = value.strip_prefix(SCHEME).unwrap_or(value);
        let model = models.iter().find(|model| model.as_str() == name)?;
        Some(folder.join(model.as_str()).into_os_string())
    };
    of(word).or_else(|| {
        let (option, value) = word.split_once('=').filter(|(option, _)| option.starts_with('-'))?;
        let mut whole = OsString::from(format!("{option}="));
        whole.push(of(value)?);
        Some(whole)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_that_are_the_model_become_its_path() {
        let models = [name("pool:models/a.gguf").unwrap()];
        let words = [
            "-m",
            "models/a.gguf",
            "pool:models/a.gguf",
            "--model=models/a.gguf",
            "x=models/a.gguf",
            "a.gguf",
        ];
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let replaced = with_paths(&words, &models, Path::new("/pool"));
        let path = "/pool/models/a.gguf";
        assert_eq!(
            replaced,
            ["-m", path, path, &format!("--model={path}"), "x=models/a.gguf", "a.gguf"].map(OsString::from)
        );
        assert_eq!(with_paths(&words, &[], Path::new("/pool")), words);
    }

    #[test]
    fn a_model_says_that_it_is_of_the_pool() {
        assert!(name("a.gguf").unwrap_err().contains("pool:a.gguf"));
        assert!(name("pool:../a").is_err());
    }
}
