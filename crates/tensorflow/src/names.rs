//! The name under which the ranks find each other's requests.
//!
//! In a graph it is the name of the node, which is the same on all ranks that built the same graph, and stands for the same
//! tensor in every step. Outside of a graph TensorFlow names nothing: a node is called like its operation. What has no other
//! name is numbered, for each process set and kind of collective, in the order in which it runs; that is program order, which
//! all ranks share. A name in the attribute `tensor_name` goes before both.
//!
//! A graph may have one node of each kind that is called like its operation; counted by kind, these find each other too.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::node::Node;

/// How an operation gets its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// The same each time.
    Fixed(String),
    /// Another each time: the kind of collective, and a number.
    Counted(&'static str),
}

impl Naming {
    /// `kind` begins every name, so that different collectives on one tensor do not meet.
    pub(crate) fn new(kind: &'static str, tensor_name: &str, ignore_scope: bool, node: &Node) -> Naming {
        if !tensor_name.is_empty() {
            return Naming::Fixed(format!("{kind}.{tensor_name}"));
        }
        if !node.has_name() {
            return Naming::Counted(kind);
        }
        let name = if ignore_scope { without_scopes(&node.name) } else { &node.name };
        Naming::Fixed(format!("{kind}.{name}"))
    }

    /// The name for one run of the operation.
    pub(crate) fn name(&self, set: u32) -> String {
        match self {
            Naming::Fixed(name) => name.clone(),
            Naming::Counted(kind) => format!("{kind}.tensorflow.noname.{}", next_number(set, kind)),
        }
    }
}

fn without_scopes(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// How many operations without a name each process set has had, of each kind.
static COUNTS: Mutex<BTreeMap<(u32, &str), u64>> = Mutex::new(BTreeMap::new());

fn next_number(set: u32, kind: &'static str) -> u64 {
    let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let count = counts.entry((set, kind)).or_default();
    *count += 1;
    *count - 1
}

/// Counts from 0 again, as all members of a set do when it is registered.
pub(crate) fn start_over(set: u32) {
    COUNTS.lock().unwrap_or_else(PoisonError::into_inner).retain(|(counted, _), _| *counted != set);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Node {
        Node { name: name.to_owned(), op: "HorovodAllreduce".to_owned(), inputs: Vec::new() }
    }

    fn fixed(name: &str) -> Naming {
        Naming::Fixed(name.to_owned())
    }

    #[test]
    fn a_node_of_a_graph_gives_its_name() {
        assert_eq!(Naming::new("allreduce", "", false, &node("a/b/x")), fixed("allreduce.a/b/x"));
    }

    #[test]
    fn scopes_are_dropped_where_asked() {
        assert_eq!(Naming::new("allreduce", "", true, &node("a/b/x")), fixed("allreduce.x"));
        assert_eq!(Naming::new("allreduce", "", true, &node("x")), fixed("allreduce.x"));
    }

    #[test]
    fn a_given_name_goes_before_the_nodes_and_keeps_its_slashes() {
        assert_eq!(Naming::new("broadcast", "a/w", true, &node("HorovodAllreduce")), fixed("broadcast.a/w"));
        assert_eq!(Naming::new("broadcast", "w", false, &node("a/b/x")), fixed("broadcast.w"));
    }

    #[test]
    fn what_has_no_name_is_counted_for_each_set_and_kind() {
        let naming = Naming::new("allreduce", "", false, &node("HorovodAllreduce"));
        assert_eq!(naming.name(7), "allreduce.tensorflow.noname.0");
        assert_eq!(naming.name(7), "allreduce.tensorflow.noname.1");
        assert_eq!(naming.name(8), "allreduce.tensorflow.noname.0");
        assert_eq!(Naming::Counted("allgather").name(7), "allgather.tensorflow.noname.0");
        start_over(7);
        assert_eq!(naming.name(7), "allreduce.tensorflow.noname.0");
        assert_eq!(naming.name(8), "allreduce.tensorflow.noname.1");
    }
}
