//! The tables of commands and answers in the documentation are those of the code.

use hinterland_proto::gpu::answer::AnswerMessage;
use hinterland_proto::gpu::command::{Command, Launch};
use hinterland_proto::gpu::{BadBody, Layout};
use std::fmt::Write as _;
use std::path::Path;

const START: &str =
    "<!-- tables: HINTERLAND_UPDATE_WORDS=1 cargo test -p hinterland-proto --test gpu_tables -->\n";

fn tables(title: &str, layouts: &[Layout]) -> String {
    let mut text = format!("## {title}\n\n| word | name | body | meaning |\n| --- | --- | --- | --- |\n");
    for layout in layouts {
        let fields: Vec<String> = layout.fields.iter().map(|(name, kind)| format!("{name} {kind}")).collect();
        let tail = if layout.has_tail { ", tail" } else { "" };
        let meaning: String = layout.meaning.concat();
        let _ = writeln!(
            text,
            "| {:#04x} | {} | {}: {}{tail} | {} |",
            layout.word,
            layout.name,
            layout.bytes,
            fields.join(", "),
            meaning.trim()
        );
    }
    text
}

#[test]
fn the_documentation_has_the_tables_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/internals/remote-gpu.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, _) = page.split_once(START).expect("the page has the line where tables begin");
    let right = format!(
        "{before}{START}\n{}\n{}",
        tables("Commands", &Command::layouts()),
        tables("Answers", &AnswerMessage::layouts())
    );
    if std::env::var_os("HINTERLAND_UPDATE_WORDS").is_some() {
        std::fs::write(&path, right).unwrap();
    } else {
        assert_eq!(page, right, "run it again with HINTERLAND_UPDATE_WORDS=1");
    }
}

#[test]
fn numbers_grow_and_fields_have_no_gaps() {
    for layouts in [Command::layouts(), AnswerMessage::layouts()] {
        assert!(layouts.windows(2).all(|pair| pair[0].word < pair[1].word));
    }
    let launch = Launch {
        function: 1,
        stream: 2,
        grid: [3, 4, 5],
        block: [6, 7, 8],
        shared: 9,
        flags: 10,
        cluster: [11, 12, 13],
    };
    let mut body = [0xff; 60];
    launch.put(&mut body);
    let words: Vec<u32> = body.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
    assert_eq!(words[..13], (1..=13).collect::<Vec<u32>>());
    assert_eq!(Command::read(Launch::WORD, &body, 60), Ok(Command::Launch(launch)));
}

#[test]
fn a_body_of_another_length_is_refused_and_a_tail_only_where_there_is_one() {
    for layout in Command::layouts() {
        let body = vec![0; layout.bytes + 1];
        assert_eq!(Command::field_bytes(layout.word), Ok(layout.bytes));
        assert!(Command::read(layout.word, &body, layout.bytes).is_ok());
        assert_eq!(
            Command::read(layout.word, &body, layout.bytes + 1).is_ok(),
            layout.has_tail,
            "{}",
            layout.name
        );
        if layout.bytes > 0 {
            let error = Command::read(layout.word, &body[..layout.bytes - 1], layout.bytes - 1).unwrap_err();
            assert!(matches!(error, BadBody::Length { .. }), "{error}");
        }
    }
    assert_eq!(Command::read(0xffff, &[], 0), Err(BadBody::Word(0xffff)));
}
