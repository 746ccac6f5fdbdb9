//! Lays one object over another, as JSON.
//!
//! What is made here lies over the user's pod template: objects are merged key by key, lists of things that have names
//! (containers, volumes) thing by thing, other lists of things one after the other. Of two plain values, of two variables
//! of a name, and of two lists of words such as a command, the upper one counts, also if it is empty.

use serde_json::Value;

/// The lower object with the upper one laid over it.
pub(crate) fn over(lower: Value, upper: Value) -> Value {
    match (lower, upper) {
        (lower, Value::Null) => lower,
        (Value::Object(mut lower), Value::Object(upper)) => {
            for (key, value) in upper {
                let below = lower.remove(&key).unwrap_or(Value::Null);
                lower.insert(key, over(below, value));
            }
            Value::Object(lower)
        }
        (Value::Array(lower), Value::Array(upper)) if lower.iter().chain(&upper).all(Value::is_string) => {
            Value::Array(upper)
        }
        (Value::Array(mut lower), Value::Array(upper)) => {
            for value in upper {
                match lower.iter().position(|below| is_same(below, &value)) {
                    // A variable has one source.
                    Some(place) if value.get("value").or(value.get("valueFrom")).is_some() => {
                        lower[place] = value
                    }
                    Some(place) => lower[place] = over(lower[place].take(), value),
                    None => lower.push(value),
                }
            }
            Value::Array(lower)
        }
        (_, upper) => upper,
    }
}

/// Whether two entries of a list are about the same thing.
fn is_same(one: &Value, other: &Value) -> bool {
    if one == other {
        return true;
    }
    // A mount is known by where it is, and a volume may be mounted twice.
    let key = if other.get("mountPath").is_some() { "mountPath" } else { "name" };
    matches!((one.get(key), other.get(key)), (Some(one), Some(other)) if one == other)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_upper_one_counts_and_the_lower_one_shows_through() {
        let lower = json!({
            "nodeSelector": {"zone": "a"},
            "hostNetwork": true,
            "containers": [{"name": "train", "image": "old", "env": [{"name": "A", "value": "1"}]}, {"name": "log"}],
            "volumes": [{"name": "data", "emptyDir": {}}],
            "tolerations": [{"key": "a"}],
        });
        let upper = json!({
            "containers": [{"name": "train", "image": "new", "env": [{"name": "B", "value": "2"}, {"name": "A", "value": "3"}]}],
            "volumes": [{"name": "ronde", "emptyDir": {}}],
            "tolerations": [{"key": "a"}, {"key": "b"}],
            "hostNetwork": null,
        });
        let expected = json!({
            "nodeSelector": {"zone": "a"},
            "hostNetwork": true,
            "containers": [
                {"name": "train", "image": "new", "env": [{"name": "A", "value": "3"}, {"name": "B", "value": "2"}]},
                {"name": "log"},
            ],
            "volumes": [{"name": "data", "emptyDir": {}}, {"name": "ronde", "emptyDir": {}}],
            "tolerations": [{"key": "a"}, {"key": "b"}],
        });
        assert_eq!(over(lower, upper), expected);
    }

    #[test]
    fn lists_of_words_are_not_mixed_and_lists_of_things_are() {
        let lower = json!({"command": ["python", "a.py"], "args": ["-v"], "secrets": [{"name": "mine"}], "drop": ["NET_RAW"]});
        let upper = json!({"command": ["ronde", "run"], "args": [], "secrets": []});
        let expected = json!({"command": ["ronde", "run"], "args": [], "secrets": [{"name": "mine"}], "drop": ["NET_RAW"]});
        assert_eq!(over(lower, upper), expected);
    }

    #[test]
    fn mounts_are_told_apart_by_their_path() {
        let lower = json!([{"name": "v", "mountPath": "/a"}]);
        let upper = json!([{"name": "v", "mountPath": "/b"}]);
        assert_eq!(over(lower, upper).as_array().map(Vec::len), Some(2));
    }
}
