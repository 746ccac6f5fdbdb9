//! Listening at a port of a given range, for networks whose firewalls let only some ports pass.

use std::io;
use std::net::{IpAddr, TcpListener};
use std::ops::RangeInclusive;

use super::neighbour::fill_random;
use crate::error::{Error, Result};

/// Listens at a free port of the range; without one, at any that the system picks.
pub(super) fn listen(address: IpAddr, range: Option<RangeInclusive<u16>>) -> Result<TcpListener> {
    let Some(range) = range else {
        return TcpListener::bind((address, 0)).map_err(Error::system(format!("listening on {address}")));
    };
    // Ranks that start at once do not all begin with the same port.
    let mut random = [0; 8];
    fill_random(&mut random)?;
    for port in rotated(&range, u64::from_le_bytes(random)) {
        match TcpListener::bind((address, port)) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(Error::system(format!("listening on {address}, port {port}"))(error)),
        }
    }
    let (low, high) = (range.start(), range.end());
    Err(Error::Invalid(format!(
        "no port is free on {address} in the range {low}-{high} (RONDE_PORT_RANGE): every rank of a host needs one"
    )))
}

/// All ports of a range once, beginning anywhere in it.
fn rotated(range: &RangeInclusive<u16>, random: u64) -> impl Iterator<Item = u16> + use<> {
    let (low, count) = (*range.start(), range.len() as u64);
    // Below `count`, which is at most 2¹⁶, and so within the range again when added to its start.
    (0..count).map(move |step| low + ((random % count + step) % count) as u16)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9));

    #[test]
    fn every_port_of_a_range_comes_once_from_any_start() {
        assert_eq!(rotated(&(7..=9), 4).collect::<Vec<_>>(), [8, 9, 7]);
        assert_eq!(rotated(&(0..=u16::MAX), u64::MAX).count(), 1 << 16);
        assert_eq!(rotated(&RangeInclusive::new(9, 7), 4).count(), 0);
    }

    #[test]
    fn a_range_is_used_up_to_its_last_port_and_then_named() {
        // Whatever the system gives is free, and with it most likely the next; a taken one only makes the range fuller.
        let first = listen(HERE, None).expect("any port").local_addr().expect("its address").port();
        let range = first.saturating_sub(2)..=first;
        let mut taken = Vec::new();
        let error = loop {
            match listen(HERE, Some(range.clone())) {
                Ok(listener) => {
                    assert!(range.contains(&listener.local_addr().expect("its address").port()));
                    taken.push(listener);
                }
                Err(error) => break error.to_string(),
            }
        };
        assert!(!taken.is_empty() && taken.len() <= 3, "{}", taken.len());
        assert!(error.contains(&format!("{}-{first}", first - 2)), "{error}");
    }

    #[test]
    fn an_address_that_is_not_of_this_machine_is_named_with_the_port() {
        let elsewhere = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
        let error = listen(elsewhere, Some(4000..=4001)).expect_err("not ours").to_string();
        assert!(error.starts_with("listening on 192.0.2.1, port 400"), "{error}");
    }
}
