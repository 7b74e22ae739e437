//! The control socket: runs are found, changed, and gone; rubbish and strangers are answered.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::Options;
use crate::store::{Codec, Life, Packed, Place, Store, StoreError, Stores};

fn supervised(name: &str) -> (Supervisor, PathBuf) {
    let folder = std::env::temp_dir().join(format!("hl-control-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let stores = Arc::new(Stores::new(vec![Box::new(Packed::new(1 << 30))], 1));
    let options = Options {
        budget: Budget::Bytes(1 << 30),
        unit_bytes: 65536,
        stores,
        ahead: true,
        service: crate::Service::default(),
        watch: crate::Watch::Nothing,
    };
    (Supervisor::start(&folder.join("far.sock"), options).unwrap(), folder)
}

fn about(name: &str) -> About {
    About { name: name.to_owned(), command: vec!["sleep".to_owned()] }
}

#[test]
fn a_run_is_found_by_number_and_name_and_gone_when_it_ends() {
    let (supervisor, folder) = supervised("found");
    let runs = folder.join("runs");
    let control = Control::open(&supervisor, &runs, about("mine"), Some(Box::new(understand))).unwrap();
    let number = std::process::id().to_string();
    for what in ["mine", &number] {
        let (_, status) = runs::find(&runs, what).unwrap();
        assert_eq!((status.about, status.budget), (about("mine"), Budget::Bytes(1 << 30)));
    }
    let missing = runs::find(&runs, "other").unwrap_err().to_string();
    assert!(missing.contains("hint:"), "{missing}");
    drop(control);
    assert!(runs::list(&runs).unwrap().is_empty());
    assert_eq!(std::fs::read_dir(&runs).unwrap().count(), 0);
    supervisor.finish();
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn two_of_one_name_are_told_apart_by_number_only() {
    let (supervisor, folder) = supervised("two");
    let runs = folder.join("runs");
    let one = Control::open(&supervisor, &runs, about("same"), Some(Box::new(understand))).unwrap();
    let other = Control::open(&supervisor, &runs, about("same"), Some(Box::new(understand))).unwrap();
    assert_eq!(runs::list(&runs).unwrap().len(), 2);
    assert!(runs::find(&runs, "same").unwrap_err().to_string().contains("several"));
    drop((one, other));
    supervisor.finish();
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_budget_changes_and_what_makes_no_sense_changes_nothing() {
    let (supervisor, folder) = supervised("budget");
    let runs = folder.join("runs");
    let control = Control::open(&supervisor, &runs, about("budget"), Some(Box::new(understand))).unwrap();
    let (path, _) = runs::find(&runs, "budget").unwrap();
    let status = ask(&path, &Request::Local(Budget::Bytes(128 << 20))).unwrap();
    assert_eq!(status.budget, Budget::Bytes(128 << 20));
    for bad in [Budget::Bytes(1 << 20), Budget::Percent(0), Budget::Percent(101)] {
        assert!(ask(&path, &Request::Local(bad)).unwrap_err().to_string().contains("hint:"));
        assert_eq!(ask(&path, &Request::Status).unwrap().budget, Budget::Bytes(128 << 20));
    }
    drop(control);
    supervisor.finish();
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn sockets_of_the_killed_are_removed_and_folders_of_others_are_refused() {
    let folder = std::env::temp_dir().join(format!("hl-control-stale-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    runs::make_folder(&folder).unwrap();
    // Its owner is gone without removing it.
    drop(std::os::unix::net::UnixListener::bind(folder.join("1.sock")).unwrap());
    assert!(folder.join("1.sock").exists());
    assert!(runs::list(&folder).unwrap().is_empty());
    assert!(!folder.join("1.sock").exists());
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&folder, open).unwrap();
    assert!(runs::list(&folder).unwrap_err().to_string().contains("alone"));
    assert!(runs::make_folder(&folder).is_err());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_peer_that_sends_rubbish_or_nothing_is_answered_and_the_next_one_too() {
    let (supervisor, folder) = supervised("rubbish");
    let runs = folder.join("runs");
    let control = Control::open(&supervisor, &runs, about("rubbish"), Some(Box::new(understand))).unwrap();
    let (path, _) = runs::find(&runs, "rubbish").unwrap();
    for rubbish in [&b"{}\n"[..], b"\xff\xfe\n", b"{\"local\":{\"bytes\":-1}}\n", b"[[[[[[", b""] {
        let stream = UnixStream::connect(&path, PATIENCE).unwrap();
        stream.send_all(rubbish, &[]).unwrap_or_default();
        drop(stream);
    }
    let stream = UnixStream::connect(&path, PATIENCE).unwrap();
    stream.send_all(b"{\"become\":\"root\"}\n", &[]).unwrap();
    let answer = receive::<Answer>(&stream, PATIENCE).unwrap().unwrap();
    assert!(matches!(answer, Answer::Refused(why) if why.contains("hint:")));
    assert_eq!(ask(&path, &Request::Status).unwrap().about.name, "rubbish");
    drop(control);
    supervisor.finish();
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_peer_whose_request_comes_in_crumbs_does_not_keep_the_others_waiting() {
    let (supervisor, folder) = supervised("crumbs");
    let runs = folder.join("runs");
    let control = Control::open(&supervisor, &runs, about("crumbs"), Some(Box::new(understand))).unwrap();
    let (path, _) = runs::find(&runs, "crumbs").unwrap();
    let (slow, next) = (UnixStream::connect(&path, PATIENCE).unwrap(), path.clone());
    slow.send_all(b"{", &[]).unwrap();
    let waiting = std::thread::spawn(move || ask(&next, &Request::Status).unwrap());
    // Without an end it would be a minute of them; refused, the stream takes no more.
    let is_cut = (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        slow.send_all(b" ", &[]).is_err()
    });
    assert!(is_cut, "a thousand crumbs are taken");
    assert_eq!(waiting.join().unwrap().about.name, "crumbs");
    drop(control);
    supervisor.finish();
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Compressed memory under another name; `broken` takes nothing.
struct Named(Packed, String);

impl Store for Named {
    fn name(&self) -> &str {
        &self.1
    }

    fn put(&self, content: &[u8]) -> Result<Place, StoreError> {
        if self.1 == "broken" {
            return Err(StoreError::Failed { name: self.1.clone(), reason: "it is broken".to_owned() });
        }
        self.0.put(content)
    }

    fn get(&self, place: Place, content: &mut [u8]) -> Result<(), StoreError> {
        self.0.get(place, content)
    }

    fn free(&self, place: Place) {
        self.0.free(place);
    }
}

fn understand(words: &str) -> Result<Wanted, String> {
    let (word, size) = match words.split_once('@') {
        Some((word, size)) => (word, Some(size.parse().unwrap())),
        None => (words, None),
    };
    let name = word.to_owned();
    if word == "nonsense" {
        return Err("nonsense is no back end (hint: any other word)".to_owned());
    }
    let room_bytes = size.unwrap_or(if word == "small" { 4096 } else { u64::MAX / 2 });
    let opened = name.clone();
    let open: Box<dyn FnOnce() -> Result<Box<dyn Store>, String>> = Box::new(move || match opened.as_str() {
        "closed" => Err("it cannot be opened (hint: open it)".to_owned()),
        "lz4" => Ok(Box::new(Packed::new(room_bytes)) as Box<dyn Store>),
        _ => Ok(Box::new(Named(Packed::new(u64::MAX / 2), opened)) as Box<dyn Store>),
    });
    let codec = (word == "lz4").then_some(Codec::Lz4);
    Ok(Wanted { name, room_bytes, is_sized: size.is_some(), codec, open })
}

#[test]
fn other_back_ends_take_over_all_content_and_bad_ones_change_nothing() {
    let (supervisor, folder) = supervised("far");
    let runs = folder.join("runs");
    let control = Control::open(&supervisor, &runs, about("far"), Some(Box::new(understand))).unwrap();
    let (path, _) = runs::find(&runs, "far").unwrap();
    let stores = Arc::clone(&supervisor.engine().stores);
    let contents: Vec<_> = (0..64u8).map(|number| stores.put(&[number; 65536]).0).collect();
    let to = |words: &[&str]| {
        ask(
            &path,
            &Request::Far {
                back_ends: words.iter().map(|word| (*word).to_owned()).collect(),
                copies: None,
                local: None,
            },
        )
    };
    let active = || -> Vec<String> {
        let members = stores.members().into_iter().filter(|member| member.life == Life::Active);
        members.map(|member| member.name).collect()
    };
    for bad in [&[][..], &["nonsense"], &["a", "a"], &["small"], &["closed"], &["a", "broken"], &["broken"]] {
        let why = to(bad).unwrap_err().to_string();
        assert!(why.contains("hint:"), "{bad:?}: {why}");
        assert_eq!(active(), ["lz4"], "{bad:?}");
    }
    for words in [&["a", "b"][..], &["b"], &["c", "lz4"]] {
        to(words).unwrap();
        let mut now = active();
        now.sort();
        assert_eq!(now, words);
        for (number, content) in (0..64u8).zip(&contents) {
            let mut read = vec![0; 65536];
            content.read(&mut read).unwrap();
            assert_eq!(read, [number; 65536]);
        }
    }
    drop((contents, control));
    supervisor.finish();
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_is_in_use_gets_the_size_that_is_named_and_keeps_its_own_without() {
    let (supervisor, folder) = supervised("sizes");
    let stores = Arc::clone(&supervisor.engine().stores);
    let engine = supervisor.engine();
    // Compresses to a few hundredths: 16 MiB fit into 1 MiB, which they do not as they are.
    let contents: Vec<_> = (0..=255u8).map(|number| stores.put(&[number; 65536]).0).collect();
    let to = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        switching::switch(&engine, &understand, &words, None)
    };
    let sizes = || -> Vec<(String, u64)> {
        let members = stores.members().into_iter().filter(|member| member.life == Life::Active);
        members.map(|member| (member.name, member.limit_bytes)).collect()
    };
    let lz4 = |bytes| ("lz4".to_owned(), bytes);
    assert_eq!(sizes(), [lz4(1 << 30)]);
    for (words, size) in [("lz4@2097152", 2 << 20), ("lz4", 2 << 20), ("lz4@1048576", 1 << 20)] {
        to(&[words]).unwrap();
        assert_eq!(sizes(), [lz4(size)], "{words}");
    }
    for (bad, part) in [
        (&["lz4@4096"][..], "have room for"),
        (&["lz4@8388608", "closed"], "cannot be opened"),
        (&["lz4@8388608", "broken"], "it is broken"),
        (&["lz4@4096", "large"], "does not fit"),
    ] {
        let why = to(bad).unwrap_err();
        assert!(why.contains(part) && why.contains("hint:"), "{bad:?}: {why}");
        assert_eq!(sizes(), [lz4(1 << 20)], "{bad:?}");
    }
    to(&["lz4@8388608", "more"]).unwrap();
    assert_eq!(sizes()[0], lz4(8 << 20));
    assert!(to(&["lz4", "more@4096"]).unwrap_err().contains("keeps the size"));
    drop(contents);
    supervisor.finish();
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_budget_that_is_refused_leaves_back_ends_as_they_are_and_one_that_is_not_comes_with_them() {
    let (supervisor, folder) = supervised("both");
    let runs = folder.join("runs");
    let control = Control::open(&supervisor, &runs, about("both"), Some(Box::new(understand))).unwrap();
    let (path, _) = runs::find(&runs, "both").unwrap();
    let to = |far: &str, bytes| {
        let back_ends = vec![far.to_owned()];
        ask(&path, &Request::Far { back_ends, copies: None, local: Some(Budget::Bytes(bytes)) })
    };
    let now = || {
        let status = ask(&path, &Request::Status).unwrap();
        let active = status.back_ends.into_iter().filter(|one| one.life == "active").map(|one| one.name);
        (status.budget, active.collect::<Vec<_>>())
    };
    for (far, bytes) in [("other", 1 << 20), ("broken", 2 << 30)] {
        assert!(to(far, bytes).unwrap_err().to_string().contains("hint:"));
        assert_eq!(now(), (Budget::Bytes(1 << 30), vec!["lz4".to_owned()]), "{far}");
    }
    to("other", 2 << 30).unwrap();
    assert_eq!(now(), (Budget::Bytes(2 << 30), vec!["other".to_owned()]));
    drop(control);
    supervisor.finish();
    std::fs::remove_dir_all(&folder).unwrap();
}
