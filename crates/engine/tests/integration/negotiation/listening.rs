//! What the leader hears of who asks for what, which a trace shows.

use super::network::{Network, allreduce, timeless};

/// What was heard since the last look, by position.
fn heard(network: &mut Network) -> Vec<(String, usize)> {
    network.settle();
    let mut heard: Vec<_> =
        network.nodes[0].take_heard().into_iter().map(|(name, at)| (name.to_string(), at)).collect();
    heard.sort();
    heard
}

#[test]
fn members_of_the_leaders_host_are_heard_one_by_one_and_others_when_all_of_their_host_have_asked() {
    let mut network = Network::new(&[2, 2], &timeless(), 1);
    network.submit_everywhere(&allreduce("unheard"));
    assert_eq!(heard(&mut network), [], "no rank listens");
    network.nodes[0].listen(true);
    for (name, cached) in [("x", false), ("x", true)] {
        let mut ask = |position| {
            network.submit(position, vec![allreduce(name)]).expect("nothing is in flight");
            heard(&mut network)
        };
        let told = |positions: &[usize]| -> Vec<(String, usize)> {
            positions.iter().map(|&position| (name.to_owned(), position)).collect()
        };
        assert_eq!(ask(1), told(&[1]), "cached: {cached}");
        assert_eq!(ask(2), []);
        assert_eq!(ask(3), told(&[2, 3]), "cached: {cached}");
        assert_eq!(ask(0), told(&[0]), "cached: {cached}");
    }
    network.nodes[0].listen(false);
    network.submit_everywhere(&allreduce("x"));
    assert_eq!(heard(&mut network), [], "no rank listens any more");
}
