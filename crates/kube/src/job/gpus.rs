//! How many GPUs a job asks for: a number, or the fewest and the most it starts with (`4..8`).

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The fewest and the most GPUs that a job starts with; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpus {
    min: u32,
    max: u32,
}

/// What is wrong with a number of GPUs, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadGpus {
    /// Not a number at all.
    #[error("{0:?} is not a number of GPUs; write 6, or 4..8 to start with what is free between the two")]
    NotANumber(String),
    /// None, or fewer.
    #[error("a job needs at least 1 GPU, and {0} were asked for; write 1 or more")]
    None(String),
    /// The fewest are more than the most.
    #[error("{min}..{max} goes down; the fewest come first: {max}..{min}")]
    Down {
        /// What stands first.
        min: u32,
        /// What stands second.
        max: u32,
    },
}

impl Gpus {
    /// The fewest that a job can have.
    pub(crate) const ONE: Gpus = Gpus { min: 1, max: 1 };

    /// Exactly this many.
    pub fn exactly(count: u32) -> Result<Gpus, BadGpus> {
        Gpus::between(count, count)
    }

    /// What is free between the two.
    pub fn between(min: u32, max: u32) -> Result<Gpus, BadGpus> {
        match (min, max) {
            (0, _) | (_, 0) => Err(BadGpus::None("0".to_owned())),
            (min, max) if min > max => Err(BadGpus::Down { min, max }),
            (min, max) => Ok(Gpus { min, max }),
        }
    }

    /// The fewest.
    pub fn min(self) -> u32 {
        self.min
    }

    /// The most.
    pub fn max(self) -> u32 {
        self.max
    }
}

impl FromStr for Gpus {
    type Err = BadGpus;

    fn from_str(text: &str) -> Result<Gpus, BadGpus> {
        let text = text.trim();
        let number = |part: &str| match part.trim().parse::<i64>() {
            Ok(count) if count < 1 => Err(BadGpus::None(count.to_string())),
            Ok(count) => u32::try_from(count).map_err(|_| BadGpus::NotANumber(text.to_owned())),
            Err(_) => Err(BadGpus::NotANumber(text.to_owned())),
        };
        match text.split_once("..") {
            Some((min, max)) => Gpus::between(number(min)?, number(max)?),
            None => Gpus::exactly(number(text)?),
        }
    }
}

impl fmt::Display for Gpus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.min == self.max {
            true => write!(out, "{}", self.min),
            false => write!(out, "{}..{}", self.min, self.max),
        }
    }
}

impl Serialize for Gpus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.min == self.max {
            true => serializer.serialize_u32(self.min),
            false => serializer.serialize_str(&self.to_string()),
        }
    }
}

impl<'de> Deserialize<'de> for Gpus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Gpus, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(i64),
            Text(String),
        }
        let text = match Written::deserialize(deserializer)? {
            Written::Number(number) => number.to_string(),
            Written::Text(text) => text,
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Gpus {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Gpus".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            // The first two are for numbers, the others for text.
            "minimum": 1,
            "maximum": ronde_placement::MOST_GPUS,
            "maxLength": 40,
            "pattern": r"^ *0*[1-9][0-9]{0,5} *(\.\. *0*[1-9][0-9]{0,5} *)?$",
            "x-kubernetes-validations": [{
                "rule": "!string(self).contains('..') || \
                         int(string(self).split('..')[0].trim()) <= int(string(self).split('..')[1].trim())",
                "message": "the fewest come first, as in 4..8",
            }],
            "description": "How many GPUs: a number, or the fewest and the most, as in \"4..8\"",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_ranges_are_read_and_written_alike() {
        for (text, min, max, json) in [("6", 6, 6, "6"), ("4..8", 4, 8, "\"4..8\""), (" 3 .. 3 ", 3, 3, "3")]
        {
            let gpus: Gpus = text.parse().expect(text);
            assert_eq!((gpus.min(), gpus.max()), (min, max), "{text}");
            assert_eq!(serde_json::to_string(&gpus).expect("json"), json);
            assert_eq!(serde_json::from_str::<Gpus>(json).expect(json), gpus);
        }
    }

    #[test]
    fn what_is_no_number_of_gpus_is_refused_with_what_to_write() {
        for (text, words) in [
            ("0", "write 1 or more"),
            ("-3", "-3 were asked for"),
            ("six", "write 6"),
            ("", "not a number"),
            ("8..4", "4..8"),
            ("0..4", "at least 1"),
            ("4..", "not a number"),
            ("99999999999", "not a number"),
            ("1.5", "not a number"),
        ] {
            let error = text.parse::<Gpus>().expect_err(text).to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
        assert!(serde_json::from_str::<Gpus>("0").is_err());
    }
}
