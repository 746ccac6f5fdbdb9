//! Node affinity, by the rules of Kubernetes: a node must fit one of several terms, and a term's requirements all hold.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::snapshot::Node;

/// One way in which a node may fit: all of this holds. Without a requirement every node does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Term(pub Vec<Requirement>);

/// Something that must hold of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Requirement {
    /// What is looked at.
    pub of: Subject,
    /// What must be true of it.
    pub is: Test,
}

/// What a requirement looks at.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// The label with this key.
    Label(String),
    /// The node's name.
    Name,
}

/// What must be true of a label or a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// It is there, and is one of these.
    In(Vec<String>),
    /// It is none of these, or is not there.
    NotIn(Vec<String>),
    /// It is there.
    Exists,
    /// It is not there.
    DoesNotExist,
    /// It is a whole number above this one.
    Above(i64),
    /// It is a whole number below this one.
    Below(i64),
}

impl Term {
    /// Whether a node fits.
    pub fn fits(&self, node: &Node) -> bool {
        self.0.iter().all(|requirement| requirement.holds(node))
    }
}

impl Requirement {
    fn holds(&self, node: &Node) -> bool {
        let value = match &self.of {
            Subject::Label(key) => node.labels.get(key),
            Subject::Name => Some(&node.name),
        };
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.is {
            Test::In(values) => value.is_some_and(|value| values.contains(value)),
            Test::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Test::Exists => value.is_some(),
            Test::DoesNotExist => value.is_none(),
            Test::Above(least) => number().is_some_and(|number| number > *least),
            Test::Below(most) => number().is_some_and(|number| number < *most),
        }
    }
}

/// As `kubectl` has it in its selectors: `zone in (a, b)`, `!slow`.
impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = match &self.of {
            Subject::Label(key) => key,
            Subject::Name => "metadata.name",
        };
        match &self.is {
            Test::In(values) => write!(f, "{of} in ({})", values.join(", ")),
            Test::NotIn(values) => write!(f, "{of} notin ({})", values.join(", ")),
            Test::Exists => f.write_str(of),
            Test::DoesNotExist => write!(f, "!{of}"),
            Test::Above(least) => write!(f, "{of} > {least}"),
            Test::Below(most) => write!(f, "{of} < {most}"),
        }
    }
}

/// All terms in a few words: `zone in (a, b), !slow or zone in (c)`.
pub(crate) fn words(terms: &[Term]) -> String {
    const MOST: usize = 100;
    let term = |term: &Term| term.0.iter().map(Requirement::to_string).collect::<Vec<_>>().join(", ");
    let all = terms.iter().map(term).collect::<Vec<_>>().join(" or ");
    match all.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &all[..end]),
        None => all,
    }
}
