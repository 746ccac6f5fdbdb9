//! The environment contract: what is read, what is assumed, what is refused and how.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use super::*;

/// A secret file that is gone after the test.
struct SecretFile(PathBuf);

impl SecretFile {
    fn new(name: &str) -> SecretFile {
        let path = std::env::temp_dir().join(format!("ronde-spec-{}-{name}", std::process::id()));
        fs::write(&path, "7a".repeat(32)).expect("write");
        SecretFile(path)
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn read(variables: &[(&str, &str)]) -> Result<Option<JobSpec>, Error> {
    let map: HashMap<String, String> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    JobSpec::from_environment(|name| map.get(name).cloned())
}

#[test]
fn an_empty_environment_is_a_job_of_one() {
    assert!(read(&[("HOROVOD_CYCLE_TIME", "1")]).expect("read").is_none());
}

#[test]
fn a_full_environment_is_read_as_it_stands() {
    let file = SecretFile::new("full");
    let spec = read(&[
        ("HOROVOD_RANK", "5"),
        ("HOROVOD_SIZE", "6"),
        ("HOROVOD_LOCAL_RANK", "0"),
        ("HOROVOD_LOCAL_SIZE", "1"),
        ("HOROVOD_CROSS_RANK", "1"),
        ("HOROVOD_CROSS_SIZE", "2"),
        ("RONDE_RENDEZVOUS", "[::1]:4000"),
        ("RONDE_SECRET_FILE", &file.0.to_string_lossy()),
        ("RONDE_START_TIMEOUT", "2.5"),
    ])
    .expect("read")
    .expect("a job");
    let place = Place { rank: 5, size: 6, local_rank: 0, local_size: 1, cross_rank: 1, cross_size: 2 };
    assert_eq!(spec.place, place);
    assert_eq!(spec.server, "[::1]:4000");
    assert_eq!(spec.start_timeout, Duration::from_millis(2500));
    assert_eq!(*spec.secret.to_hex(), "7a".repeat(32));
}

#[test]
fn without_local_and_cross_variables_every_rank_has_its_own_host() {
    let file = SecretFile::new("defaults");
    let spec = read(&[
        ("HOROVOD_RANK", "2"),
        ("HOROVOD_SIZE", "3"),
        ("RONDE_RENDEZVOUS", "chief:4000"),
        ("RONDE_SECRET_FILE", &file.0.to_string_lossy()),
    ])
    .expect("read")
    .expect("a job");
    let place = Place { rank: 2, size: 3, local_rank: 0, local_size: 1, cross_rank: 2, cross_size: 3 };
    assert_eq!(spec.place, place);
    assert_eq!(spec.start_timeout, Duration::from_secs(600));
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    let file = SecretFile::new("wrong");
    let file = file.0.to_string_lossy().into_owned();
    let complete = [
        ("HOROVOD_RANK", "0"),
        ("HOROVOD_SIZE", "2"),
        ("RONDE_RENDEZVOUS", "h:1"),
        ("RONDE_SECRET_FILE", file.as_str()),
    ];
    for (missing, _) in complete {
        let rest: Vec<_> = complete.into_iter().filter(|(name, _)| *name != missing).collect();
        let error = read(&rest).expect_err(missing).to_string();
        assert!(error.contains(&format!("{missing} is not")), "{missing}: {error}");
    }
    for (name, value, expected) in [
        ("HOROVOD_RANK", "2", "must be below HOROVOD_SIZE=2"),
        ("HOROVOD_RANK", "-1", "is not a number"),
        ("HOROVOD_SIZE", "0", "must be at least 1"),
        ("HOROVOD_LOCAL_RANK", "0", "HOROVOD_LOCAL_SIZE is not"),
        ("HOROVOD_CROSS_SIZE", "1", "HOROVOD_CROSS_RANK is not"),
        ("RONDE_RENDEZVOUS", "nowhere", "is not host:port"),
        ("RONDE_SECRET_FILE", "/nowhere", "/nowhere"),
        ("RONDE_START_TIMEOUT", "soon", "is not a number"),
        ("RONDE_START_TIMEOUT", "-1", "positive number of seconds"),
    ] {
        let mut variables = complete.to_vec();
        variables.retain(|(other, _)| *other != name);
        variables.push((name, value));
        let error = read(&variables).expect_err(name).to_string();
        assert!(error.contains(expected), "{name}={value}: {error}");
    }
}
