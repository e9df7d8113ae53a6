//! HTTP dates, in the three forms that a recipient has to understand (RFC 9110 5.6.7).

use jiff::{
    Timestamp,
    civil::{Date, Weekday},
    tz::TimeZone,
};

use crate::time::Wall;

const WEEKDAYS: [(&str, &str, Weekday); 7] = [
    ("Mon", "Monday", Weekday::Monday),
    ("Tue", "Tuesday", Weekday::Tuesday),
    ("Wed", "Wednesday", Weekday::Wednesday),
    ("Thu", "Thursday", Weekday::Thursday),
    ("Fri", "Friday", Weekday::Friday),
    ("Sat", "Saturday", Weekday::Saturday),
    ("Sun", "Sunday", Weekday::Sunday),
];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
/// A two-digit year that seems further ahead than this is in the past.
const TWO_DIGIT_YEARS_AHEAD: i64 = 50;
const DAY_S: i64 = 86_400;

/// The instant that `value` names; `None` where it is no HTTP date. `now` decides the century of a two-digit year.
///
/// ```
/// use retrysafe_core::{retry::after::date, time::Wall};
///
/// let now = Wall::from_unix_ms(784_111_777_000);
/// for form in ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
///     assert_eq!(date::parse(form, now), Some(now), "{form}");
/// }
/// ```
pub fn parse(value: &str, now: Wall) -> Option<Wall> {
    if !value.is_ascii() {
        return None;
    }
    match value.split_once(", ") {
        Some((weekday, rest)) => match rest.as_bytes().get(2)? {
            b' ' => fixdate(weekday, rest),
            b'-' => rfc850(weekday, rest, now),
            _ => None,
        },
        None => asctime(value),
    }
}

/// `06 Nov 1994 08:49:37 GMT` after `Sun, `.
fn fixdate(weekday: &str, rest: &str) -> Option<Wall> {
    let [day, month, year, time, "GMT"] = pieces(rest, ' ')? else { return None };
    let date = calendar(number(year, 4)?, month, number(day, 2)?)?;
    let named = WEEKDAYS.iter().find(|(short, ..)| *short == weekday)?;
    (date.weekday() == named.2).then(|| instant(date, time))?
}

/// `06-Nov-94 08:49:37 GMT` after `Sunday, `.
fn rfc850(weekday: &str, rest: &str, now: Wall) -> Option<Wall> {
    let [date, time, "GMT"] = pieces(rest, ' ')? else { return None };
    let [day, month, year] = pieces(date, '-')?;
    let present = Timestamp::from_millisecond(now.unix_ms()).ok()?;
    let this_year = i64::from(TimeZone::UTC.to_datetime(present).year());
    let in_century = this_year - this_year.rem_euclid(100) + number(year, 2)?;
    let year = if in_century > this_year + TWO_DIGIT_YEARS_AHEAD { in_century - 100 } else { in_century };
    let date = calendar(year, month, number(day, 2)?)?;
    let named = WEEKDAYS.iter().find(|(_, long, _)| *long == weekday)?;
    (date.weekday() == named.2).then(|| instant(date, time))?
}

/// `Sun Nov  6 08:49:37 1994`; the day is padded with a blank, and GMT is understood.
fn asctime(value: &str) -> Option<Wall> {
    let (weekday, rest) = value.split_once(' ')?;
    let (month, rest) = rest.split_once(' ')?;
    let (day, rest) = (rest.get(..2)?, rest.get(2..)?);
    let [time, year] = pieces(rest.strip_prefix(' ')?, ' ')?;
    let day = match day.strip_prefix(' ') {
        Some(digit) => number(digit, 1)?,
        None => number(day, 2)?,
    };
    let date = calendar(number(year, 4)?, month, day)?;
    let named = WEEKDAYS.iter().find(|(short, ..)| *short == weekday)?;
    (date.weekday() == named.2).then(|| instant(date, time))?
}

fn pieces<const N: usize>(text: &str, separator: char) -> Option<[&str; N]> {
    let mut split = text.split(separator);
    let mut pieces = [""; N];
    for piece in &mut pieces {
        *piece = split.next()?;
    }
    split.next().is_none().then_some(pieces)
}

fn calendar(year: i64, month: &str, day: i64) -> Option<Date> {
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    Date::new(i16::try_from(year).ok()?, i8::try_from(month).ok()?, i8::try_from(day).ok()?).ok()
}

/// The instant of a UTC day and a `08:49:37`. A leap second is the first second of the next minute.
fn instant(date: Date, time: &str) -> Option<Wall> {
    let [hour, minute, second] = pieces(time, ':')?;
    let (hour, minute, second) = (number(hour, 2)?, number(minute, 2)?, number(second, 2)?);
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let epoch = Date::new(1970, 1, 1).ok()?;
    let days = i64::from(date.since(epoch).ok()?.get_days());
    let seconds = days * DAY_S + hour * 3_600 + minute * 60 + second;
    Some(Wall::from_unix_ms(seconds * 1_000))
}

fn number(text: &str, digits: usize) -> Option<i64> {
    let plain = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok())?
}
