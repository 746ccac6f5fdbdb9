//! Who measures the way to whom, when.
//!
//! Two measurements that share a host would share its link, so in one round every host takes part at most once. With
//! `n` hosts, `n - 1` rounds (`n` if that is odd) bring everybody together with everybody: a round-robin tournament, by
//! the circle method.

/// The rounds for so many hosts; each is a list of pairs, the lower number first.
pub(super) fn rounds(hosts: usize) -> Vec<Vec<(usize, usize)>> {
    // With an odd number one host at a time rests: it plays against nobody, who has the last number.
    let seats = hosts + hosts % 2;
    let round = |number: usize| {
        // The last seat stays, the others move on by one place in each round.
        let seat = |place: usize| match place {
            0 => seats - 1,
            _ => (place - 1 + number) % (seats - 1),
        };
        let pair = |place: usize| (seat(place), seat(seats - 1 - place));
        let played = |(one, other): (usize, usize)| (one.min(other), one.max(other));
        (0..seats / 2).map(pair).map(played).filter(|(_, other)| *other < hosts).collect()
    };
    match hosts {
        0 | 1 => Vec::new(),
        _ => (0..seats - 1).map(round).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn everybody_meets_everybody_once_and_nobody_is_in_two_places() {
        for hosts in 0..=17 {
            let mut met = BTreeSet::new();
            for round in rounds(hosts) {
                let mut busy = BTreeSet::new();
                for (one, other) in round {
                    assert!(one < other && other < hosts, "{hosts}: {one} and {other}");
                    assert!(busy.insert(one) && busy.insert(other), "{hosts}: twice in one round");
                    assert!(met.insert((one, other)), "{hosts}: {one} and {other} met twice");
                }
            }
            assert_eq!(met.len(), hosts * hosts.saturating_sub(1) / 2, "{hosts}");
        }
        assert_eq!(rounds(8).len(), 7);
        assert_eq!(rounds(5).len(), 5);
    }
}
