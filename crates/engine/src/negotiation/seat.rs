//! Where a node sits in the tree: its host, its relay, its children.

use super::messages::Run;

/// Who is in a process set and where. Positions number the members from 0.
#[derive(Clone, Debug)]
pub struct Topology {
    /// This node's position.
    pub me: usize,
    /// Global ranks of the members, ascending.
    pub members: Vec<usize>,
    /// Positions by host, each ascending, hosts ordered by their first; every position is on one host.
    pub hosts: Vec<Vec<usize>>,
    /// The host name of each position, for messages.
    pub host_names: Vec<String>,
}

/// A topology from the point of view of one node.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) me: usize,
    pub(super) members: Vec<usize>,
    pub(super) hosts: Vec<Vec<usize>>,
    pub(super) host_names: Vec<String>,
    /// For each position its host, and its place there.
    places: Vec<(usize, usize)>,
    /// To whom this node's messages go up.
    pub(super) parent: Option<usize>,
    /// To whom this node passes the log.
    pub(super) children: Vec<usize>,
}

/// What another node is to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Neighbour {
    /// The log comes from it.
    Parent,
    /// A member of this relay's host, by its place there.
    Member(usize),
    /// The relay of another host, by the host.
    Relay(usize),
}

impl Seat {
    pub(super) fn new(topology: Topology) -> Seat {
        let Topology { me, members, hosts, host_names } = topology;
        let mut places = vec![(0, 0); members.len()];
        for (host, positions) in hosts.iter().enumerate() {
            for (place, &position) in positions.iter().enumerate() {
                places[position] = (host, place);
            }
        }
        let relay = hosts[places[me].0][0];
        let parent = match me {
            0 => None,
            _ if me == relay => Some(0),
            _ => Some(relay),
        };
        let mut children = Vec::new();
        if me == relay {
            children.extend(&hosts[places[me].0][1..]);
        }
        if me == 0 {
            children.extend(hosts[1..].iter().map(|positions| positions[0]));
        }
        Seat { me, members, hosts, host_names, places, parent, children }
    }

    pub(super) fn is_leader(&self) -> bool {
        self.me == 0
    }

    pub(super) fn is_relay(&self) -> bool {
        self.place() == 0
    }

    /// This node's host.
    pub(super) fn host(&self) -> usize {
        self.places[self.me].0
    }

    /// This node's place on its host.
    pub(super) fn place(&self) -> usize {
        self.places[self.me].1
    }

    pub(super) fn host_of(&self, position: usize) -> usize {
        self.places[position].0
    }

    pub(super) fn neighbour(&self, position: usize) -> Option<Neighbour> {
        if self.parent == Some(position) {
            return Some(Neighbour::Parent);
        }
        let &(host, place) = self.places.get(position)?;
        match place {
            0 if self.is_leader() && host != 0 => Some(Neighbour::Relay(host)),
            1.. if self.is_relay() && host == self.host() => Some(Neighbour::Member(place)),
            _ => None,
        }
    }

    /// The parts that a relay counts: the members of its host.
    pub(super) fn own_host(&self) -> Vec<Vec<Run>> {
        self.hosts[self.host()].iter().map(|&position| Run::of([position])).collect()
    }

    /// The parts that the leader counts: the hosts.
    pub(super) fn all_hosts(&self) -> Vec<Vec<Run>> {
        self.hosts.iter().map(|positions| Run::of(positions.iter().copied())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seat(me: usize) -> Seat {
        Seat::new(Topology {
            me,
            members: vec![2, 3, 5, 7, 11],
            hosts: vec![vec![0, 3], vec![1, 2, 4]],
            host_names: vec![String::new(); 5],
        })
    }

    #[test]
    fn messages_climb_to_the_relay_and_then_to_the_leader() {
        let parents: Vec<_> = (0..5).map(|me| seat(me).parent).collect();
        assert_eq!(parents, [None, Some(0), Some(1), Some(0), Some(1)]);
        let children: Vec<_> = (0..5).map(|me| seat(me).children).collect();
        assert_eq!(children, [vec![3, 1], vec![2, 4], vec![], vec![], vec![]]);
    }

    #[test]
    fn strangers_are_told_from_neighbours() {
        use Neighbour::{Member, Parent, Relay};
        let of = |me: usize| (0..6).map(|other| seat(me).neighbour(other)).collect::<Vec<_>>();
        assert_eq!(of(0), [None, Some(Relay(1)), None, Some(Member(1)), None, None]);
        assert_eq!(of(1), [Some(Parent), None, Some(Member(1)), None, Some(Member(2)), None]);
        assert_eq!(of(4), [None, Some(Parent), None, None, None, None]);
    }
}
