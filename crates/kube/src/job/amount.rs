//! An amount of CPU or memory as people write it: `4`, `500m`, `16Gi`.

use std::fmt;
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

use crate::cluster::quantity;

/// A quantity that can be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Amount(String);

/// What is wrong with an amount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an amount; write 4 or 500m for CPUs, 16Gi or 500Mi for memory")]
pub struct BadAmount(String);

impl Amount {
    /// In thousandths.
    pub fn thousandths(&self) -> u64 {
        quantity::parse(&self.0).unwrap_or(0)
    }

    /// The amount for this many, in the unit itself where that is a whole number.
    pub(crate) fn times(&self, count: u32) -> Quantity {
        let thousandths = self.thousandths().saturating_mul(u64::from(count));
        Quantity(match thousandths % 1000 {
            0 => (thousandths / 1000).to_string(),
            _ => format!("{thousandths}m"),
        })
    }
}

impl FromStr for Amount {
    type Err = BadAmount;

    fn from_str(text: &str) -> Result<Amount, BadAmount> {
        match quantity::parse(text) {
            Some(_) => Ok(Amount(text.trim().to_owned())),
            None => Err(BadAmount(text.to_owned())),
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Amount, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Whole(u64),
            Number(f64),
            Text(String),
        }
        let text = match Written::deserialize(deserializer)? {
            Written::Whole(number) => number.to_string(),
            Written::Number(number) => number.to_string(),
            Written::Text(text) => text,
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Amount {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Amount".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "minimum": 0,
            "maxLength": 40,
            "pattern": r"^ *([0-9]+\.?[0-9]*|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)? *$",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_for_several_gpus_are_multiplied() {
        for (text, count, expected) in
            [("4", 5, "20"), ("500m", 3, "1500m"), ("500m", 4, "2"), ("1Ki", 2, "2048")]
        {
            let amount: Amount = text.parse().expect(text);
            assert_eq!(amount.times(count).0, expected, "{text} × {count}");
        }
        assert_eq!(serde_json::from_str::<Amount>("1.5").expect("a number").thousandths(), 1500);
        let error = "16GB".parse::<Amount>().expect_err("no such unit").to_string();
        assert!(error.contains("16Gi"), "{error}");
    }
}
