//! Reads a job that somebody wrote, whatever is in it.
//!
//! The API server stores all that the definition's schema lets pass, that of an earlier definition too. Were a job read as
//! a whole, one wrong field would leave nothing of it, and a list of jobs with such a one in it could not be read at all.
//! So fields are read one by one: those that cannot be read are left as if they had not been written, and named.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::{JobStatus, RondeJobSpec};

/// What is asked for. What could not be read of it is in `unreadable`, and `validate` says so.
pub(crate) fn read_spec(written: &Value) -> RondeJobSpec {
    // Stands in for the three fields that there must be.
    let base = json!({"gpus": 1, "image": "-", "command": ["-"]});
    let nothing = || RondeJobSpec::new(super::Gpus::ONE, "", Vec::new());
    let (mut spec, mut unreadable) = by_field(&base, written, nothing);
    for field in ["gpus", "image", "command"] {
        if written.get(field).is_none_or(Value::is_null) {
            unreadable.push(format!("{field}: it is missing"));
        }
    }
    spec.unreadable = unreadable;
    spec
}

/// How far the job was. We wrote it ourselves, so what cannot be read is of another version, and nothing to tell people.
pub(crate) fn read_status(written: &Value) -> JobStatus {
    by_field(&json!({}), written, JobStatus::default).0
}

/// The value with all fields that can be read, each laid over `base` alone, and what is wrong with the others.
fn by_field<T: DeserializeOwned>(base: &Value, written: &Value, nothing: impl Fn() -> T) -> (T, Vec<String>) {
    let fields: Map<String, Value> = written.as_object().cloned().unwrap_or_default();
    let laid_over = |fields: Map<String, Value>| {
        let mut value = base.clone();
        if let Some(all) = value.as_object_mut() {
            all.extend(fields);
        }
        serde_json::from_value::<T>(value)
    };
    if let Ok(read) = laid_over(fields.clone()) {
        return (read, Vec::new());
    }
    let (mut readable, mut problems) = (Map::new(), Vec::new());
    for (name, value) in fields {
        match laid_over(Map::from_iter([(name.clone(), value.clone())])) {
            Ok(_) => drop(readable.insert(name, value)),
            Err(error) => problems.push(format!("{name}: {error}")),
        }
    }
    (laid_over(readable).unwrap_or_else(|_| nothing()), problems)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Phase, examples, validate};

    fn written() -> Value {
        json!({"gpus": 6, "image": "train:1", "command": ["python", "train.py"]})
    }

    #[test]
    fn a_job_in_order_is_read_as_ever() {
        assert_eq!(read_spec(&written()), examples::spec(6));
    }

    #[test]
    fn what_is_left_out_has_the_value_that_the_manual_names() {
        let spec = read_spec(&written());
        assert_eq!(spec.resource, "nvidia.com/gpu");
        assert_eq!((spec.run_as_user, spec.run_as_group), (1000, 1000));
        assert_eq!((spec.start_deadline_seconds, spec.ttl_seconds_after_finished), (600, 3600));
    }

    #[test]
    fn what_cannot_be_read_is_named_with_what_to_write_and_the_rest_is_kept() {
        for (field, value, words) in [
            ("memoryPerGpu", json!("16GB"), "memoryPerGpu: \"16GB\" is not an amount; write 4 or 500m"),
            ("memoryPerGpu", json!("99999999999999Ei"), "memoryPerGpu: "),
            ("gpus", json!("8..4"), "gpus: 8..4 goes down; the fewest come first: 4..8"),
            ("gpus", json!(99_999_999_999_i64), "gpus: "),
            ("retries", json!(5_000_000_000_i64), "retries: "),
            ("ttlSecondsAfterFinished", json!(-1), "ttlSecondsAfterFinished: "),
            ("policy", json!("fast"), "policy: "),
            ("volumes", json!([{"claim": "data"}]), "volumes: missing field `path`"),
        ] {
            let mut written = written();
            written[field] = value;
            written["priority"] = json!(7);
            let spec = read_spec(&written);
            assert_eq!((spec.image.as_str(), spec.priority), ("train:1", 7), "{field}");
            let problems = validate("mnist", &spec).expect_err(field);
            assert!(problems.len() == 1 && problems[0].starts_with(words), "{problems:?}");
        }
    }

    #[test]
    fn a_field_of_a_newer_definition_is_passed_over() {
        // The newer definition's defaults are in every job from the moment that it is applied; misspelt fields never come
        // this far, since the API server refuses or drops what its definition does not know.
        let mut written = written();
        written["ofTomorrow"] = json!({"on": false});
        assert_eq!(read_spec(&written), examples::spec(6));
    }

    #[test]
    fn two_mistakes_are_both_named_and_what_is_missing_too() {
        let spec = read_spec(&json!({"gpus": 0, "retries": "many"}));
        let problems = validate("mnist", &spec).expect_err("nothing is right").join("\n");
        for words in [
            "gpus: a job needs at least 1 GPU",
            "retries: ",
            "image: it is missing",
            "command: it is missing",
        ] {
            assert!(problems.contains(words), "{problems}");
        }
        assert!(validate("mnist", &read_spec(&Value::Null)).is_err());
    }

    #[test]
    fn an_end_is_remembered_even_if_something_else_in_a_status_cannot_be_read() {
        let status = read_status(&json!({"phase": "Succeeded", "attempt": -1, "exitCode": 0}));
        assert_eq!((status.phase, status.exit_code, status.attempt), (Phase::Succeeded, Some(0), 0));
        assert_eq!(read_status(&Value::Null), JobStatus::default());
    }
}
