//! Tensors that become ready together.
//!
//! A rank hands in a group as a whole, so once one of its tensors is complete the others will be too. Complete ones wait
//! here for the rest. One that fails takes its group along, for a group has one result.

use std::collections::HashMap;

use super::fusion::Ready;
use super::request::GroupTag;

/// Groups of which some tensors are complete.
#[derive(Debug, Default)]
pub(super) struct Groups {
    waiting: HashMap<GroupTag, Group>,
}

#[derive(Debug, Default)]
struct Group {
    items: Vec<Ready>,
    /// How many tensors have been complete so far, failed ones included.
    seen: u32,
    broken: Option<String>,
}

/// What became of a group.
#[derive(Debug, PartialEq)]
pub(super) enum Outcome {
    /// Others are missing.
    Wait,
    /// All are here.
    Go(Vec<Ready>),
    /// A tensor of the group has failed, so this one does.
    Fail(Ready, String),
}

impl Groups {
    /// A tensor of a group is complete and in order.
    pub(super) fn complete(&mut self, tag: &GroupTag, item: Ready) -> Outcome {
        let group = self.waiting.entry(tag.clone()).or_default();
        group.seen += 1;
        let is_last = group.seen >= tag.of;
        if let Some(text) = &group.broken {
            let failed = Outcome::Fail(item, text.clone());
            if is_last {
                self.waiting.remove(tag);
            }
            return failed;
        }
        group.items.push(item);
        if !is_last {
            return Outcome::Wait;
        }
        Outcome::Go(self.waiting.remove(tag).map(|group| group.items).unwrap_or_default())
    }

    /// A tensor of a group has failed. Returns those that waited for it.
    pub(super) fn fail(&mut self, tag: &GroupTag, text: &str) -> Vec<Ready> {
        let group = self.waiting.entry(tag.clone()).or_default();
        group.seen += 1;
        group.broken.get_or_insert_with(|| text.to_owned());
        let waited = std::mem::take(&mut group.items);
        if group.seen >= tag.of {
            self.waiting.remove(tag);
        }
        waited
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ronde_collective::types::DType;

    use super::super::request::{Facts, Kind, Request};
    use super::*;

    fn ready(name: &str) -> Ready {
        let facts = Arc::new(Facts::of(Request::new(Kind::Allreduce, name, DType::F32, [1])));
        Ready { tally: 0, facts, bytes: 4, order: 0 }
    }

    #[test]
    fn a_group_goes_when_its_last_tensor_is_complete() {
        let (mut groups, tag) = (Groups::default(), GroupTag { name: "g".into(), of: 2 });
        for _ in 0..2 {
            assert_eq!(groups.complete(&tag, ready("a")), Outcome::Wait);
            assert_eq!(groups.complete(&tag, ready("b")), Outcome::Go(vec![ready("a"), ready("b")]));
        }
        assert!(groups.waiting.is_empty());
    }

    #[test]
    fn a_failure_takes_the_group_along_whoever_comes_first() {
        let (mut groups, tag) = (Groups::default(), GroupTag { name: "g".into(), of: 3 });
        assert_eq!(groups.complete(&tag, ready("a")), Outcome::Wait);
        assert_eq!(groups.fail(&tag, "no"), [ready("a")]);
        assert_eq!(groups.complete(&tag, ready("c")), Outcome::Fail(ready("c"), "no".into()));
        assert!(groups.waiting.is_empty(), "the next group of that name starts afresh");
    }
}
