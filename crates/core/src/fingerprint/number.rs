//! One spelling for each JSON number, without ever merging two of them (F4).
//!
//! RFC 8785 reads every number as a double, and then 9007199254740993 is 9007199254740992: two amounts, one fingerprint.
//! Here a number takes its RFC 8785 form only where that form has exactly the decimal value of the text that was sent.
//! Otherwise its text stands for it, so those numbers are the same only when they are spelled the same.

/// RFC 8785 prints whole numbers of up to this many digits without an exponent. So one that was sent like that has either
/// the same form, or another value than its form: its text stands for it either way.
const PLAIN_DIGITS: usize = 21;

/// A double prints with at most this many significant digits, so a number with more never equals its printed form.
const MAX_SIGNIFICANT: usize = 17;

/// Writes the canonical spelling of `text`, which is a number by the grammar of JSON.
pub(super) fn write(text: &str, out: &mut Vec<u8>) {
    if text.len() <= PLAIN_DIGITS && text.bytes().all(|b| b.is_ascii_digit()) {
        return out.extend_from_slice(text.as_bytes());
    }
    match Decimal::parse(text) {
        Some(sent) if sent.digits == 0 => out.push(b'0'),
        Some(sent) => {
            let double = sent.nearest_double();
            let mut buffer = ryu_js::Buffer::new();
            let form = buffer.format(double);
            let exact = double.is_finite() && Decimal::parse(form) == Some(sent);
            out.extend_from_slice(if exact { form } else { text }.as_bytes());
        }
        None => out.extend_from_slice(text.as_bytes()),
    }
}

/// `digits * 10^exponent`, where `digits` does not end in zero unless it is zero. Equal values are equal here.
#[derive(PartialEq, Eq)]
struct Decimal {
    negative: bool,
    digits: u64,
    exponent: i64,
}

impl Decimal {
    /// `None` where the value has more than [`MAX_SIGNIFICANT`] digits or an exponent beyond counting.
    fn parse(text: &str) -> Option<Self> {
        let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));

        let (mut digits, mut significant, mut zeros_behind) = (0_u64, 0, 0_i64);
        for byte in whole.bytes().chain(fraction.bytes()) {
            match byte {
                b'0' if significant == 0 => {}
                b'0' => zeros_behind += 1,
                b'1'..=b'9' => {
                    // Zeros so far were inside the number after all.
                    significant += 1 + usize::try_from(zeros_behind).ok()?;
                    if significant > MAX_SIGNIFICANT {
                        return None;
                    }
                    for _ in 0..zeros_behind {
                        digits *= 10;
                    }
                    zeros_behind = 0;
                    digits = digits * 10 + u64::from(byte - b'0');
                }
                _ => return None,
            }
        }
        if digits == 0 {
            return Some(Self { negative: false, digits: 0, exponent: 0 });
        }
        let shift = zeros_behind - i64::try_from(fraction.len()).ok()?;
        let exponent = exponent.parse::<i64>().ok()?.checked_add(shift)?;
        Some(Self { negative, digits, exponent })
    }

    fn nearest_double(&self) -> f64 {
        // Not the text that was sent: the standard library misreads exponents that a million zeros make up for.
        let sign = if self.negative { "-" } else { "" };
        format!("{sign}{}e{}", self.digits, self.exponent).parse().unwrap_or(f64::NAN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        let mut out = Vec::new();
        write(text, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn f4_spellings_of_one_number_are_one() {
        for (form, spellings) in [
            ("1", &["1.0", "1e0", "10e-1", "0.1E1", "1.000000000000000000000000"][..]),
            ("0", &["-0", "0.0", "-0.0e99999999999999999999", "0e-7"]),
            ("-1.5", &["-1.50", "-15e-1", "-0.15E+1"]),
            ("100000000000000000000", &["1e20", "1E+20", "10.0e19"]),
            ("1e+21", &["1000000000000000000000", "1E21"]),
            ("1e-7", &["0.0000001", "0.00000010"]),
            ("100000000000000000000", &["100000000000000000000.0"]),
            ("9007199254740992", &["9007199254740992.0", "9.007199254740992e15"]),
            ("5e-324", &["5e-324", "0.5e-323"]),
            ("1.7976931348623157e+308", &["17976931348623157e292"]),
        ] {
            for text in spellings {
                assert_eq!(canonical(text), form, "{text}");
            }
            assert_eq!(canonical(form), form);
        }
    }

    #[test]
    fn f4_numbers_beyond_a_double_keep_their_text() {
        for text in [
            "9007199254740993",
            "18446744073709551617",
            "1152921504606846976",
            "0.1000000000000000055511151231257827",
            "0.10000000000000001",
            "1e400",
            "-1e400",
            "1e-400",
            "2e-324",
            "1e99999999999999999999",
            "123456789012345678",
        ] {
            assert_eq!(canonical(text), text);
        }
    }

    #[test]
    fn a_million_digits_are_read_in_one_pass() {
        let zeros = "0".repeat(1_000_000);
        assert_eq!(canonical(&format!("1{zeros}e-1000000")), "1");
        assert_eq!(canonical(&format!("0.{zeros}1e1000001")), "1");
        let kept = format!("1{zeros}1");
        assert_eq!(canonical(&kept), kept);
    }
}
