//! Kubernetes' quantities as numbers: `500m`, `1.5Gi`, `2e3`.
//!
//! Everything is counted in thousandths, so that CPUs need no fractions; what is smaller is rounded up, as the scheduler
//! does. A quantity that cannot be read counts as nothing: the API server has checked those that it hands out.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The quantity in thousandths.
pub(crate) fn thousandths(quantity: &Quantity) -> u64 {
    parse(&quantity.0).unwrap_or(0)
}

/// The quantity in whole units, rounded up: bytes, GPUs, pods.
pub(crate) fn whole(quantity: &Quantity) -> u64 {
    thousandths(quantity).div_ceil(1000)
}

/// Reads a quantity; none if it is not one, or negative.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    // Digits as one whole number, and how many of them stand behind the point.
    let fraction = &fraction[..fraction.len().min(9)];
    let value: u128 = format!("{whole}{fraction}").parse().ok()?;
    let below = 10u128.checked_pow(fraction.len() as u32)?;
    let (up, down) = scale(suffix)?;
    let thousandths = value.checked_mul(up)?.checked_mul(1000)?.div_ceil(below.checked_mul(down)?);
    u64::try_from(thousandths).ok()
}

/// What a suffix multiplies by and divides by.
fn scale(suffix: &str) -> Option<(u128, u128)> {
    let binary = |power: u32| Some((1u128 << (10 * power), 1));
    let decimal = |power: u32| Some((10u128.pow(power), 1));
    match suffix {
        "" => Some((1, 1)),
        "n" => Some((1, 1_000_000_000)),
        "u" => Some((1, 1_000_000)),
        "m" => Some((1, 1000)),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let power: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let times = 10u128.checked_pow(power.unsigned_abs())?;
            Some(if power < 0 { (1, times) } else { (times, 1) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_of_writing_a_quantity_is_read() {
        for (text, thousandths) in [
            ("0", 0),
            ("8", 8_000),
            ("500m", 500),
            ("0.5", 500),
            (".5", 500),
            ("1.5Gi", 1_610_612_736_000),
            ("64Gi", 68_719_476_736_000),
            ("2e3", 2_000_000),
            ("2E-1", 200),
            ("1k", 1_000_000),
            ("1u", 1),
            ("100n", 1),
        ] {
            assert_eq!(parse(text), Some(thousandths), "{text}");
        }
        for wrong in ["", "GB", "1.2.3", "-1", "1GB", "e3", "1 Gi", "99999999999999Ei"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!(whole(&Quantity("1500m".to_owned())), 2);
    }
}
