//! The description of the node that a kernel is made for: a serialized `NodeDef`, of which three fields matter here.
//!
//! It also tells whether the kernel will run outside of a graph. There TensorFlow (2.13 to 2.21 at least) makes a graph up
//! that has the one node, called like its operation, and feeds it from nodes called like the arguments: `tensor`, or
//! `tensors_0` and so on for a list. It runs that on the thread that called the operation.

/// Numbers of the fields in `node_def.proto`.
const NAME: u64 = 1;
const OP: u64 = 2;
const INPUT: u64 = 3;

/// A node, as far as kernels want to know it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) name: String,
    /// Name of the operation.
    pub(crate) op: String,
    /// Names of the nodes that feed it.
    pub(crate) inputs: Vec<String>,
}

impl Node {
    /// Reads a serialized node; `None` if the bytes are no message.
    pub(crate) fn read(mut bytes: &[u8]) -> Option<Node> {
        let mut node = Node::default();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes)?;
            let value = match tag & 7 {
                0 => {
                    varint(&mut bytes)?;
                    continue;
                }
                1 => take(&mut bytes, 8)?,
                2 => {
                    let len = usize::try_from(varint(&mut bytes)?).ok()?;
                    take(&mut bytes, len)?
                }
                5 => take(&mut bytes, 4)?,
                _ => return None,
            };
            match tag >> 3 {
                NAME => node.name = text(value),
                OP => node.op = text(value),
                INPUT => node.inputs.push(text(value)),
                _ => {}
            }
        }
        Some(node)
    }

    /// Whether somebody gave it a name.
    pub(crate) fn has_name(&self) -> bool {
        self.name != self.op
    }

    /// Whether this is, to all appearances, a node that TensorFlow made up to run an operation outside of a graph. `argument`
    /// is the operation's first.
    pub(crate) fn is_eager(&self, argument: &str) -> bool {
        let is_argument =
            |input: &String| input.strip_prefix(argument).is_some_and(|rest| rest.is_empty() || rest == "_0");
        !self.has_name() && self.inputs.first().is_none_or(is_argument)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (value, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(value)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_read_past_fields_of_every_kind() {
        let bytes = b"\x0a\x03a/b\x12\x02Op\x1a\x03x:0\x1a\x01y\x22\x00\x2a\x05\x0a\x01T\x12\x00\x30\x96\x01\x39\0\0\0\0\0\0\0\0\x45\0\0\0\0";
        let inputs = vec!["x:0".to_owned(), "y".to_owned()];
        assert_eq!(Node::read(bytes), Some(Node { name: "a/b".into(), op: "Op".into(), inputs }));
    }

    #[test]
    fn what_is_cut_short_or_no_message_is_refused() {
        assert_eq!(Node::read(b"\x0a\x05abc"), None);
        assert_eq!(Node::read(b"\x0b"), None);
        assert_eq!(Node::read(&[0xff; 12]), None);
    }

    #[test]
    fn only_a_node_that_is_called_like_its_operation_and_fed_by_its_arguments_is_eager() {
        let node = |name: &str, inputs: &[&str]| Node {
            name: name.into(),
            op: "Op".into(),
            inputs: inputs.iter().map(|&input| input.to_owned()).collect(),
        };
        assert!(node("Op", &["tensor"]).is_eager("tensor"));
        assert!(node("Op", &["tensors_0", "tensors_1"]).is_eager("tensors"));
        assert!(node("Op", &[]).is_eager("tensor"));
        assert!(!node("Op", &["x"]).is_eager("tensor"));
        assert!(!node("Op", &["tensors_1"]).is_eager("tensors"));
        assert!(!node("Op_1", &["tensor"]).is_eager("tensor"));
    }
}
