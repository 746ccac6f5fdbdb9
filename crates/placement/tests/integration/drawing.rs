//! What people see of plans and refusals.

use crate::clusters::{flat, holder, nodes};
use ronde_placement::{DEFAULT_RESOURCE, Node, Paper, Policy, Request, draw_plan, draw_refusal, plan};

/// The users' example: 5 of 8, 3 of 4 and 2 of 8 are free.
fn example() -> Vec<Node> {
    let mut nodes = nodes(&[5, 3, 2]);
    nodes[1] = Node::new("node-2").with_gpus(DEFAULT_RESOURCE, 3, 4);
    nodes
}

fn drawn(nodes: Vec<Node>, request: &Request, paper: &Paper) -> String {
    let lines = match plan(&flat(nodes), request) {
        Ok(plan) => draw_plan(&plan, paper),
        Err(refusal) => {
            let hints = refusal.help().into_iter().map(|help| format!("hint: {help}"));
            draw_refusal(&refusal, paper).into_iter().chain([refusal.headline()]).chain(hints).collect()
        }
    };
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_plan_is_a_table_with_the_shares_drawn_in_it_and_the_alternative_below() {
    let expected = "  \
  node    free / all   plan
  node-1   5 / 8       ■■■■■        5
  node-2   3 / 4       □□□          –   6 = 5 + 1 needs one more GPU; node-3 fits tighter
  node-3   2 / 8       ■□           1   chief
6 GPUs on 2 nodes (policy pack). Balanced would be 3 + 3 on node-1, node-2: --policy balance
";
    assert_eq!(drawn(example(), &Request::new(6), &Paper::default()), expected);
}

#[test]
fn without_an_alternative_the_sentence_ends_early() {
    let expected = "  \
  node    free / all   plan
  node-1   1 / 8       ■            1   chief
1 GPU on 1 node (policy spread)
";
    assert_eq!(drawn(nodes(&[1]), &Request::new(1).by(Policy::Spread), &Paper::default()), expected);
}

#[test]
fn a_terminal_without_unicode_gets_ascii() {
    let expected = "  \
  node    free / all   plan
  node-1   5 / 8       #####        5
  node-2   3 / 4       ...          -   6 = 5 + 1 needs one more GPU; node-3 fits tighter
  node-3   2 / 8       #.           1   chief
6 GPUs on 2 nodes (policy pack). Balanced would be 3 + 3 on node-1, node-2: --policy balance
";
    assert_eq!(drawn(example(), &Request::new(6), &Paper { ascii: true, ..Paper::default() }), expected);
}

#[test]
fn on_a_narrow_terminal_notes_are_wrapped_or_go_below() {
    let narrow = "  \
  node    free / all   plan
  node-1   5 / 8       ■■■■■        5
  node-2   3 / 4       □□□          –   6 = 5 + 1 needs one more
                                        GPU; node-3 fits tighter
  node-3   2 / 8       ■□           1   chief
6 GPUs on 2 nodes (policy pack). Balanced would be 3 + 3 on
node-1, node-2: --policy balance
";
    assert_eq!(drawn(example(), &Request::new(6), &Paper { width: 65, ..Paper::default() }), narrow);
    let narrower = "  \
  node    free / all   plan
  node-1   5 / 8       ■■■■■        5
  node-2   3 / 4       □□□          –
      6 = 5 + 1 needs one more GPU; node-3
      fits tighter
  node-3   2 / 8       ■□           1   chief
6 GPUs on 2 nodes (policy pack). Balanced
would be 3 + 3 on node-1, node-2: --policy
balance
";
    assert_eq!(drawn(example(), &Request::new(6), &Paper { width: 45, ..Paper::default() }), narrower);
}

#[test]
fn many_gpus_are_numbers_and_many_nodes_are_counted() {
    let mut cluster = nodes(&[64, 40, 0, 0, 0, 2]);
    cluster[4].cordoned = true;
    cluster.push(Node::new("storage-1"));
    let expected = "  \
  node    free / all   plan
  node-1  64 / 64      ■×64        64
  node-2  40 / 40      ■×6 □×34     6   chief
  node-3   0 / 8                    –   full
  and 4 more nodes: 1 cordoned, 1 full, 1 too small, 1 without such GPUs
70 GPUs on 2 nodes (policy pack). Balanced would be 35 + 35 on node-1, node-2: --policy balance
";
    assert_eq!(drawn(cluster, &Request::new(70), &Paper { rows: 1, ..Paper::default() }), expected);
}

#[test]
fn long_numbers_widen_their_column() {
    let expected = "  \
  node    free / all      plan
  node-1  60000 / 65535   ■×50,000 □×10,000    50000   chief
  node-2      5 / 8       □□□□□                    –   too small: 50000 = 50000 needs 50000 GPUs on every node
50000 GPUs on 1 node (policy pack)
";
    let nodes = vec![
        Node::new("node-1").with_gpus(DEFAULT_RESOURCE, 60_000, 65_535),
        Node::new("node-2").with_gpus(DEFAULT_RESOURCE, 5, 8),
    ];
    assert_eq!(drawn(nodes, &Request::new(50_000), &Paper { width: 120, ..Paper::default() }), expected);
}

#[test]
fn a_refusal_is_a_table_of_what_could_be_had_and_what_would_help() {
    let mut cluster = nodes(&[2, 3, 0]);
    cluster[0].holders = vec![holder("job bert-a91", 6, 12_000)];
    cluster[1].cordoned = true;
    let expected = "  \
  node    free / all   can give
  node-1   2 / 8       □□           2   has only 2 free (job bert-a91, 3 h 20 m so far)
  node-2   3 / 8                    –   cordoned
  node-3   0 / 8                    –   full
6 GPUs (nvidia.com/gpu) are asked for, and 2 can be had now
hint: 2 GPUs could start now: --gpus 2
hint: kubectl uncordon node-2 would add 3 free GPUs
";
    assert_eq!(drawn(cluster, &Request::new(6), &Paper::default()), expected);
}

#[test]
fn a_request_that_makes_no_sense_needs_no_table() {
    let expected = "a job of 0 GPUs cannot be planned; ask for at least one\n";
    assert_eq!(drawn(example(), &Request::new(0), &Paper::default()), expected);
}

#[test]
fn time_sliced_gpus_are_pointed_out() {
    let mut cluster = nodes(&[8]);
    cluster[0].gpus.get_mut(DEFAULT_RESOURCE).expect("it has GPUs").replicas = 4;
    let text = drawn(cluster, &Request::new(2), &Paper::default());
    let note = "note: GPUs of node-1 are time-sliced: 4 that are counted are one real GPU, with one memory\n";
    assert!(text.ends_with(note), "{text}");
}
