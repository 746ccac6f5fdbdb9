//! Who shares a GPU with whom, and which way follows from that. Pure: the members' cards in, the same answer on every rank.

use ronde_settings::GpuPath;

/// As many ranks as one kernel folds.
pub const MOST_PEERS: usize = 16;

/// What a member says about its GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// The GPU, or the part of one.
    pub uuid: [u8; 16],
    /// Whether its memory can be handed to other processes.
    pub shares_memory: bool,
    /// The way that the member was told to take.
    pub asked: GpuPath,
    /// How many streams it was told to have.
    pub lanes: u8,
    /// The version of NCCL that the member has; 0 for none.
    pub nccl: u32,
}

/// In the order of the numbers that they travel as.
const PATHS: [GpuPath; 4] = [GpuPath::Auto, GpuPath::Device, GpuPath::Nccl, GpuPath::Host];

impl Card {
    /// How many bytes a card is.
    pub const LEN: usize = 24;

    /// As it travels.
    pub fn to_bytes(&self) -> [u8; Card::LEN] {
        let mut bytes = [0; Card::LEN];
        bytes[..16].copy_from_slice(&self.uuid);
        bytes[16] = u8::from(self.shares_memory);
        bytes[17] = PATHS.iter().position(|&path| path == self.asked).unwrap_or(0) as u8;
        bytes[18] = self.lanes;
        bytes[20..].copy_from_slice(&self.nccl.to_le_bytes());
        bytes
    }

    /// Read again; `None` if it is of another length.
    pub fn from_bytes(bytes: &[u8]) -> Option<Card> {
        let bytes: &[u8; Card::LEN] = bytes.try_into().ok()?;
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[..16]);
        let nccl = u32::from_le_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]);
        let asked = *PATHS.get(usize::from(bytes[17]))?;
        Some(Card { uuid, shares_memory: bytes[16] != 0, asked, lanes: bytes[18], nccl })
    }
}

/// How a set's tensors travel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// There is only this rank.
    Alone,
    /// All members share one GPU.
    Device,
    /// Every member has a GPU of its own.
    Nccl,
    /// Several members on each of several GPUs, by position; the first of each speaks for it.
    Both(Vec<Vec<usize>>),
    /// Through the host's memory, and why.
    Host(String),
}

/// Decides. `hosts` are positions that share memory, `cards` are in the order of positions.
///
/// # Errors
/// The way that was asked for does not exist, or members were told different things.
pub fn choose(cards: &[Card], hosts: &[Vec<usize>]) -> Result<Way, String> {
    let asked = cards.first().map_or(GpuPath::Auto, |card| card.asked);
    if let Some(other) = cards.iter().find(|card| card.asked != asked) {
        let (one, other) = (asked.name(), other.asked.name());
        return Err(format!("RONDE_GPU_PATH has to be the same on all ranks, but is {one} and {other}"));
    }
    if let Some(other) = cards.iter().find(|card| card.lanes != cards[0].lanes) {
        let (one, other) = (cards[0].lanes, other.lanes);
        return Err(format!(
            "HOROVOD_NUM_NCCL_STREAMS has to be the same on all ranks, but is {one} and {other}"
        ));
    }
    let gpus = by_gpu(cards, hosts);
    let way = match asked {
        GpuPath::Host => Way::Host("RONDE_GPU_PATH=host asks for it".into()),
        GpuPath::Nccl if missing_nccl(cards).is_some() => {
            return Err(format!("RONDE_GPU_PATH=nccl: {}", missing_nccl(cards).unwrap_or_default()));
        }
        GpuPath::Nccl => Way::Nccl,
        _ if cards.len() == 1 => Way::Alone,
        _ => automatic(cards, &gpus),
    };
    match (asked, way) {
        (GpuPath::Device, Way::Alone) => Ok(Way::Alone),
        (GpuPath::Device, Way::Device) => Ok(Way::Device),
        (GpuPath::Device, _) => Err(format!(
            "RONDE_GPU_PATH=device needs all ranks of a process set on one GPU, but these are on {} GPUs; \
             leave it at auto",
            gpus.len()
        )),
        (_, way) => Ok(way),
    }
}

fn automatic(cards: &[Card], gpus: &[Vec<usize>]) -> Way {
    let crowded = gpus.iter().find(|gpu| gpu.len() > MOST_PEERS);
    if let Some(gpu) = crowded {
        return Way::Host(format!("{} ranks share one GPU, more than {MOST_PEERS}", gpu.len()));
    }
    let mut sharers = gpus.iter().filter(|gpu| gpu.len() > 1).flatten().peekable();
    let is_shared = sharers.peek().is_some();
    if !sharers.all(|&member| cards[member].shares_memory) {
        return Way::Host("this GPU's memory cannot be shared between processes".into());
    }
    if gpus.len() == 1 {
        return Way::Device;
    }
    let speakers: Vec<Card> = gpus.iter().map(|gpu| cards[gpu[0]].clone()).collect();
    let mut uuids: Vec<_> = speakers.iter().map(|card| card.uuid).collect();
    uuids.sort_unstable();
    if uuids.windows(2).any(|pair| pair[0] == pair[1]) {
        return Way::Host(
            "ranks that share a GPU do not share memory, as in containers without --ipc=host".into(),
        );
    }
    if let Some(reason) = missing_nccl(&speakers) {
        return Way::Host(reason);
    }
    if is_shared { Way::Both(gpus.to_vec()) } else { Way::Nccl }
}

fn missing_nccl(cards: &[Card]) -> Option<String> {
    let without = cards.iter().filter(|card| card.nccl == 0).count();
    if without > 0 {
        return Some(format!(
            "{without} of {} ranks have no NCCL; see ronde run --check-build there",
            cards.len()
        ));
    }
    // NCCL itself refuses other minor versions only late, and then by hanging.
    let version = |card: &Card| card.nccl / 100;
    let other = cards.iter().find(|card| version(card) != version(&cards[0]))?;
    Some(format!("ranks have different versions of NCCL: {} and {}", cards[0].nccl, other.nccl))
}

/// Positions by GPU, GPUs by their first member. A GPU of one name on two hosts, which share no memory, counts twice.
fn by_gpu(cards: &[Card], hosts: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut gpus: Vec<Vec<usize>> = Vec::new();
    for host in hosts {
        let first = gpus.len();
        for &member in host {
            let known = gpus[first..].iter_mut().find(|gpu| cards[gpu[0]].uuid == cards[member].uuid);
            match known {
                Some(gpu) => gpu.push(member),
                None => gpus.push(vec![member]),
            }
        }
    }
    gpus.sort_unstable_by_key(|gpu| gpu[0]);
    gpus
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cards from letters, one a GPU; upper case without NCCL, `?` cannot share memory.
    fn cards(text: &str, asked: GpuPath) -> Vec<Card> {
        let card = |letter: char| Card {
            asked,
            lanes: 1,
            uuid: [letter.to_ascii_lowercase() as u8; 16],
            shares_memory: letter != '?',
            nccl: if letter.is_ascii_uppercase() { 0 } else { 22_803 },
        };
        text.chars().map(card).collect()
    }

    fn chosen(text: &str, hosts: &[&[usize]], asked: GpuPath) -> String {
        let hosts: Vec<Vec<usize>> = hosts.iter().map(|host| host.to_vec()).collect();
        match choose(&cards(text, asked), &hosts) {
            Ok(Way::Host(why)) => format!("host: {why}"),
            Ok(way) => format!("{way:?}"),
            Err(error) => format!("error: {error}"),
        }
    }

    #[test]
    fn the_way_follows_from_who_shares_a_gpu() {
        for (what, gpus, hosts, way) in [
            ("one rank", "a", &[&[0][..]][..], "Alone"),
            ("one GPU", "aa", &[&[0, 1]], "Device"),
            ("one GPU needs no NCCL", "AA", &[&[0, 1]], "Device"),
            ("GPUs of their own", "ab", &[&[0, 1]], "Nccl"),
            ("on two hosts", "ab", &[&[0], &[1]], "Nccl"),
            ("two on each", "aabb", &[&[0, 1, 2, 3]], "Both([[0, 1], [2, 3]])"),
            ("round robin", "abab", &[&[0, 1, 2, 3]], "Both([[0, 2], [1, 3]])"),
            ("uneven, on hosts", "aab", &[&[0, 1], &[2]], "Both([[0, 1], [2]])"),
            (
                "no NCCL",
                "aB",
                &[&[0, 1]],
                "host: 1 of 2 ranks have no NCCL; see ronde run --check-build there",
            ),
            (
                "memory that cannot be shared",
                "??",
                &[&[0, 1]],
                "host: this GPU's memory cannot be shared between processes",
            ),
            ("memory that need not be", "?a", &[&[0, 1]], "Nccl"),
            (
                "memory that cannot be shared on the second of two GPUs",
                "aa??",
                &[&[0, 1, 2, 3]],
                "host: this GPU's memory cannot be shared between processes",
            ),
        ] {
            assert_eq!(chosen(gpus, hosts, GpuPath::Auto), way, "{what}");
        }
        let apart = chosen("aa", &[&[0], &[1]], GpuPath::Auto);
        assert!(apart.contains("do not share memory"), "{apart}");
        let crowd = "a".repeat(17);
        let everybody: Vec<usize> = (0..17).collect();
        let crowded = chosen(&crowd, &[&everybody], GpuPath::Auto);
        assert!(crowded.contains("17 ranks share one GPU"), "{crowded}");
    }

    #[test]
    fn a_way_that_was_asked_for_is_taken_or_refused() {
        assert_eq!(chosen("aa", &[&[0, 1]], GpuPath::Nccl), "Nccl");
        assert_eq!(chosen("a", &[&[0]], GpuPath::Nccl), "Nccl");
        assert!(
            chosen("AA", &[&[0, 1]], GpuPath::Nccl).starts_with("error: RONDE_GPU_PATH=nccl: 2 of 2 ranks")
        );
        assert_eq!(chosen("aa", &[&[0, 1]], GpuPath::Device), "Device");
        assert!(chosen("ab", &[&[0, 1]], GpuPath::Device).contains("are on 2 GPUs"));
        assert!(chosen("aa", &[&[0, 1]], GpuPath::Host).starts_with("host"));
    }

    #[test]
    fn ranks_that_were_told_different_things_are_told_so() {
        let mut differing = cards("aa", GpuPath::Auto);
        differing[1].lanes = 2;
        let text = choose(&differing, &[vec![0, 1]]).expect_err("an error");
        assert!(text.contains("HOROVOD_NUM_NCCL_STREAMS") && text.contains("1 and 2"), "{text}");
        differing[1] = Card { asked: GpuPath::Host, ..differing[0].clone() };
        let text = choose(&differing, &[vec![0, 1]]).expect_err("an error");
        assert!(text.contains("RONDE_GPU_PATH") && text.contains("auto and host"), "{text}");
    }

    #[test]
    fn cards_travel_as_they_are_and_others_are_refused() {
        let card = &cards("B", GpuPath::Nccl)[0];
        assert_eq!(Card::from_bytes(&card.to_bytes()).as_ref(), Some(card));
        assert_eq!(Card::from_bytes(&[0; 5]), None);
    }
}
