//! The control socket: runs are found, changed, and gone; rubbish and strangers are answered.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::Options;
use crate::store::{Packed, Stores};

fn supervised(name: &str) -> (Supervisor, PathBuf) {
    let folder = std::env::temp_dir().join(format!("hl-control-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let stores = Arc::new(Stores::new(vec![Box::new(Packed::new(1 << 30))], 1));
    let options = Options { budget: Budget::Bytes(1 << 30), unit_bytes: 65536, stores, ahead: true };
    (Supervisor::start(&folder.join("far.sock"), options).unwrap(), folder)
}

fn about(name: &str) -> About {
    About { name: name.to_owned(), command: vec!["sleep".to_owned()] }
}

#[test]
fn a_run_is_found_by_number_and_name_and_gone_when_it_ends() {
    let (supervisor, folder) = supervised("found");
    let runs = folder.join("runs");
    let control = Control::open(&supervisor, &runs, about("mine")).unwrap();
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
    let one = Control::open(&supervisor, &runs, about("same")).unwrap();
    let other = Control::open(&supervisor, &runs, about("same")).unwrap();
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
    let control = Control::open(&supervisor, &runs, about("budget")).unwrap();
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
    let control = Control::open(&supervisor, &runs, about("rubbish")).unwrap();
    let (path, _) = runs::find(&runs, "rubbish").unwrap();
    for rubbish in [&b"{}\n"[..], b"\xff\xfe\n", b"{\"local\":{\"bytes\":-1}}\n", b"[[[[[[", b""] {
        let stream = UnixStream::connect(&path, PATIENCE).unwrap();
        stream.send_all(rubbish, &[]).unwrap_or_default();
        drop(stream);
    }
    let stream = UnixStream::connect(&path, PATIENCE).unwrap();
    stream.send_all(b"{\"become\":\"root\"}\n", &[]).unwrap();
    let answer = receive::<Answer>(&stream).unwrap().unwrap();
    assert!(matches!(answer, Answer::Refused(why) if why.contains("hint:")));
    assert_eq!(ask(&path, &Request::Status).unwrap().about.name, "rubbish");
    drop(control);
    supervisor.finish();
    std::fs::remove_dir_all(&folder).unwrap();
}
