//! Writing the secret down, reading it back, and never showing it.

use std::fs;
use std::path::PathBuf;

use ronde_trust::{Error, Secret};

/// A file that is gone after the test.
struct Scratch(PathBuf);

impl Scratch {
    fn holding(name: &str, content: &[u8]) -> Scratch {
        let path = std::env::temp_dir().join(format!("ronde-secret-{}-{name}", std::process::id()));
        fs::write(&path, content).expect("write");
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn hexadecimal_round_trips_and_secrets_differ() {
    let secret = Secret::random().expect("randomness");
    let text = secret.to_hex();
    assert_eq!(text.len(), 64);
    assert_eq!(*Secret::from_hex(&text).expect("parse").to_hex(), *text);
    assert_eq!(*Secret::from_hex(&text.to_uppercase()).expect("parse").to_hex(), *text);
    assert_ne!(*Secret::random().expect("randomness").to_hex(), *text);
}

#[test]
fn debug_shows_nothing_of_it() {
    let secret = Secret::from_hex(&"ab".repeat(32)).expect("parse");
    let shown = format!("{secret:?}");
    assert!(!shown.contains("ab") && !shown.contains("171"), "{shown}");
}

#[test]
fn a_file_is_read_with_or_without_a_line_ending() {
    let text = "0f".repeat(32);
    for (name, ending) in [("bare", ""), ("unix", "\n"), ("dos", "\r\n")] {
        let file = Scratch::holding(name, format!("{text}{ending}").as_bytes());
        assert_eq!(*Secret::read_file(&file.0).expect(name).to_hex(), text, "{name}");
    }
}

#[test]
fn what_is_no_secret_is_refused_without_being_quoted() {
    for (name, content) in [
        ("empty", String::new()),
        ("short", "abc".into()),
        ("long", "0f".repeat(3000)),
        ("letters", "zx".repeat(32)),
        ("accents", "é".repeat(32)),
    ] {
        let file = Scratch::holding(name, content.as_bytes());
        let error = Secret::read_file(&file.0).expect_err(name);
        assert!(matches!(error, Error::NotASecret { .. }), "{name}: {error:?}");
        let told = error.to_string();
        assert!(told.contains(&*file.0.to_string_lossy()), "{told}");
        assert!(content.is_empty() || !told.contains(&content), "{told}");
    }
    assert!(matches!(Secret::from_hex("12"), Err(Error::Format { .. })));
}

#[test]
fn a_missing_file_is_named() {
    let error = Secret::read_file("/nowhere/at/all").expect_err("missing");
    assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
}
