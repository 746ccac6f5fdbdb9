//! Plans and refusals as people see them: a table of the cluster with the chosen shares drawn in it, and a sentence.
//!
//! ```text
//!   node    free / all   plan
//!   node-1   5 / 8       ■■■■■        5
//!   node-2   3 / 4       □□□          –   6 = 5 + 1 needs one more GPU; node-3 fits tighter
//!   node-3   2 / 8       ■□           1   chief
//! 6 GPUs on 2 nodes (policy pack). Balanced would be 3 + 3 on node-1, node-2: --policy balance
//! ```
//!
//! Pure: values in, lines out. Whoever prints them knows how wide the terminal is, and may colour what is taken.

use std::collections::BTreeMap;

use crate::plan::{Plan, Refusal, Verdict, gpus, summary};
use crate::reason::Reason;
use crate::request::Policy;

/// A free GPU that is taken, and one that stays free.
const TAKEN: char = '■';
const FREE: char = '□';
/// With more free GPUs than this a bar is two numbers.
const LONGEST_BAR: u32 = 16;
/// Room for the bar of a usual node.
const BAR: usize = 8;
/// Notes narrower than this get lines of their own.
const NARROWEST_NOTE: usize = 24;

/// What lines are drawn on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paper {
    /// How many characters fit on a line.
    pub width: usize,
    /// Whether only ASCII can be shown.
    pub ascii: bool,
    /// How many nodes that give nothing are shown one by one; the others are counted by their reasons.
    pub rows: usize,
}

impl Default for Paper {
    fn default() -> Paper {
        Paper { width: 100, ascii: false, rows: 24 }
    }
}

/// The plan as a table, and below it what it comes to and what another policy would have chosen.
pub fn draw_plan(plan: &Plan, paper: &Paper) -> Vec<String> {
    let chief = plan.shares.iter().find(|share| share.chief).map(|share| share.node.as_str());
    let rows = plan.nodes.iter().map(|verdict| Row {
        verdict,
        bar: bar(verdict.taken, verdict.free),
        count: verdict.taken,
        note: match &verdict.reason {
            Some(Reason::Enough) | None if chief == Some(&verdict.node) => "chief".to_owned(),
            Some(Reason::Enough) | None => String::new(),
            Some(reason) if chief == Some(&verdict.node) => format!("chief; {}", reason.short()),
            Some(reason) => reason.short(),
        },
    });
    let mut lines = table("plan", rows.collect(), paper);
    let (nodes, s) = (plan.shares.len(), if plan.shares.len() == 1 { "" } else { "s" });
    let mut sentence =
        format!("{} {} on {nodes} node{s} (policy {}).", plan.gpus, gpus(plan.gpus), plan.policy);
    for other in &plan.alternatives {
        let shares = summary(&other.shares);
        sentence += &format!(" {} would be {shares}: --policy {}", participle(other.policy), other.policy);
    }
    lines.extend(wrap(sentence.trim_end_matches('.'), paper.width));
    lines.extend(wrap(&time_sliced(plan), paper.width));
    finish(lines, paper)
}

/// The refusal as a table of what each node could give. What is missing and what would help are for standard error.
pub fn draw_refusal(refusal: &Refusal, paper: &Paper) -> Vec<String> {
    let rows = refusal.nodes.iter().map(|verdict| Row {
        verdict,
        bar: bar(0, verdict.usable),
        count: verdict.usable,
        note: verdict.reason.as_ref().map_or(String::new(), Reason::short),
    });
    let lines = if refusal.nodes.is_empty() { vec![] } else { table("can give", rows.collect(), paper) };
    finish(lines, paper)
}

/// One node in a table.
struct Row<'a> {
    verdict: &'a Verdict,
    bar: String,
    count: u32,
    note: String,
}

fn table(title: &str, rows: Vec<Row>, paper: &Paper) -> Vec<String> {
    let (shown, folded) = fold(rows, paper.rows);
    let widest = |text: fn(&Row) -> usize, least: usize| shown.iter().map(text).fold(least, usize::max);
    let name = widest(|row| row.verdict.node.chars().count(), "node".len());
    let free = widest(|row| digits(row.verdict.free), 2);
    let all = widest(|row| digits(row.verdict.all), 1);
    let counts = (free + all + " / ".len()).max("free / all".len());
    let bar = widest(|row| row.bar.chars().count(), BAR) + 4;
    let count = widest(|row| digits(row.count), 2);
    let mut lines = vec![format!("  {:name$}  {:counts$}   {title}", "node", "free / all")];
    for Row { verdict, bar: drawn, count: given, note } in &shown {
        let of = format!("{:>free$} / {}", verdict.free, verdict.all);
        let given = if *given == 0 { "–".to_owned() } else { given.to_string() };
        let line = format!("  {:name$}  {of:counts$}   {drawn:bar$}{given:>count$}", verdict.node);
        annotate(&mut lines, line, note, paper.width);
    }
    if !folded.is_empty() {
        let total: usize = folded.values().sum();
        let kinds: Vec<String> =
            folded.iter().map(|(kind, count)| format!("{} {kind}", grouped(*count))).collect();
        let s = if total == 1 { "" } else { "s" };
        let note = format!("and {} more node{s}: {}", grouped(total), kinds.join(", "));
        lines.extend(wrap(&note, paper.width.saturating_sub(2)).into_iter().map(|line| format!("  {line}")));
    }
    lines
}

/// The rows to show, and of the others how many there are of each kind. Nodes without such GPUs are never shown.
fn fold(rows: Vec<Row>, most: usize) -> (Vec<Row>, BTreeMap<&'static str, usize>) {
    let (mut shown, mut folded, mut idle) = (Vec::new(), BTreeMap::new(), 0);
    for row in rows {
        let foreign = matches!(row.verdict.reason, Some(Reason::NoSuchGpus { .. }));
        let idles = row.verdict.taken == 0;
        if foreign || (idles && idle >= most) {
            *folded.entry(row.verdict.reason.as_ref().map_or("free", Reason::kind)).or_default() += 1;
        } else {
            idle += usize::from(idles);
            shown.push(row);
        }
    }
    (shown, folded)
}

/// The line with its note: beside it if there is room, else below.
fn annotate(lines: &mut Vec<String>, line: String, note: &str, width: usize) {
    const GAP: usize = 3;
    const INDENT: usize = 6;
    if note.is_empty() {
        lines.push(line);
        return;
    }
    let column = line.chars().count() + GAP;
    let (mut parts, indent) = if column + NARROWEST_NOTE.min(note.chars().count()) <= width {
        (wrap(note, width - column), column)
    } else {
        lines.push(line.clone());
        (wrap(note, width.saturating_sub(INDENT)), INDENT)
    };
    if indent == column {
        lines.push(format!("{line}{:GAP$}{}", "", parts.remove(0)));
    }
    lines.extend(parts.into_iter().map(|part| format!("{:indent$}{part}", "")));
}

/// The text in lines of at most `width` characters, broken between words; a longer word has its own line.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn bar(taken: u32, free: u32) -> String {
    if free <= LONGEST_BAR {
        let cell = |cell| if cell < taken { TAKEN } else { FREE };
        return (0..free).map(cell).collect();
    }
    let part = |sign: char, count: u32| (count > 0).then(|| format!("{sign}×{}", grouped(count as usize)));
    [part(TAKEN, taken), part(FREE, free - taken)].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// `10,000`.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn digits(number: u32) -> usize {
    number.to_string().len()
}

fn participle(policy: Policy) -> &'static str {
    match policy {
        Policy::Pack => "Packed",
        Policy::Balance => "Balanced",
        Policy::Spread => "Spread",
        Policy::InOrder => "In order it",
    }
}

/// A word of warning if GPUs of the plan are not whole ones.
fn time_sliced(plan: &Plan) -> String {
    let sliced: Vec<&Verdict> =
        plan.nodes.iter().filter(|node| node.taken > 0 && node.replicas > 1).collect();
    match sliced.as_slice() {
        [] => String::new(),
        [first, others @ ..] => {
            let more = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
            format!(
                "note: GPUs of {}{more} are time-sliced: {} that are counted are one real GPU, with one memory",
                first.node, first.replicas
            )
        }
    }
}

fn finish(lines: Vec<String>, paper: &Paper) -> Vec<String> {
    let plain = |line: String| {
        let line = line.trim_end().to_owned();
        if !paper.ascii {
            return line;
        }
        let plain = |sign| match sign {
            TAKEN => "#".to_owned(),
            FREE => ".".to_owned(),
            '–' => "-".to_owned(),
            '×' => "x".to_owned(),
            '…' => "...".to_owned(),
            sign if sign.is_ascii() => sign.to_string(),
            _ => "?".to_owned(),
        };
        line.chars().map(plain).collect()
    };
    lines.into_iter().map(plain).collect()
}
