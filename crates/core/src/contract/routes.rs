//! From a request's method and path to its endpoint.
//!
//! **A lookup errs on the side of guarding.** Servers differ in what they take for the same path. If `/orders/` were not
//! found but the upstream served it as `/orders`, a trailing slash would be a way past the layer. So the lookup ignores a
//! trailing slash and doubled slashes, resolves `.` and `..`, and decodes percent-encoded unreserved characters
//! (RFC 3986, 6.2.2): `/%6Frders/` finds `/orders`. `%2F` stays a character of its segment, and case matters. The
//! fingerprint and the upstream still see the path as it was sent.

use std::borrow::Cow;

use super::{
    model::{Contract, Endpoint},
    values::SAFE_METHODS,
};

/// One router for each method; values are indexes into [`Contract::endpoints`].
#[derive(Clone, Debug, Default)]
pub(super) struct Routes {
    by_method: Vec<(String, matchit::Router<usize>)>,
}

/// Two templates of one method that cannot be told apart. Holds the index of the earlier one, where the router names it.
#[derive(Debug)]
pub(super) struct Conflict(pub(super) Option<usize>);

/// What a request is to the contract.
#[derive(Debug)]
pub enum Lookup<'c> {
    /// A listed operation, with the path parameters.
    Endpoint(&'c Endpoint, Params),
    /// It changes state and no endpoint lists it: [`Contract::unlisted`] applies.
    Unlisted,
    /// GET, HEAD, OPTIONS, TRACE: nothing to guard.
    SafeMethod,
}

/// Parameters of a matched path, percent-decoded: they name things, such as the resource that a request ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Params(Vec<(Box<str>, Box<str>)>);

impl Params {
    /// The parameter's value.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| &**known == name).map(|(_, value)| &**value)
    }
}

impl Routes {
    /// Adds an endpoint.
    ///
    /// # Errors
    /// [`Conflict`] where an earlier template of the method takes the same paths.
    pub(super) fn insert(&mut self, index: usize, endpoints: &[Endpoint]) -> Result<(), Conflict> {
        let endpoint = &endpoints[index];
        let at = self.by_method.iter().position(|(method, _)| *method == endpoint.method);
        let at = at.unwrap_or_else(|| {
            self.by_method.push((endpoint.method.clone(), matchit::Router::new()));
            self.by_method.len() - 1
        });
        match self.by_method[at].1.insert(&*endpoint.path, index) {
            Ok(()) => Ok(()),
            Err(error) => {
                let same = |other: &Endpoint| {
                    other.method == endpoint.method
                        && matches!(&error, matchit::InsertError::Conflict { with } if *with == other.path)
                };
                Err(Conflict(endpoints[..index].iter().position(same)))
            }
        }
    }
}

impl Contract {
    /// The endpoint of a request, by its method and the path it was sent with (without its query).
    ///
    /// ```
    /// use retrysafe_core::contract::{Contract, Lookup};
    ///
    /// # let text = include_str!("../../tests/contract/small.toml");
    /// let contract = Contract::parse(text, "retrysafe.toml")?;
    /// assert!(matches!(contract.find("POST", "/orders/"), Lookup::Endpoint(found, _) if found.path == "/orders"));
    /// assert!(matches!(contract.find("POST", "/refunds"), Lookup::Unlisted));
    /// assert!(matches!(contract.find("GET", "/orders"), Lookup::SafeMethod));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn find(&self, method: &str, path: &str) -> Lookup<'_> {
        if SAFE_METHODS.contains(&method) {
            return Lookup::SafeMethod;
        }
        let Some((_, router)) = self.routes.by_method.iter().find(|(known, _)| known == method) else {
            return Lookup::Unlisted;
        };
        match router.at(&normal(path)) {
            Ok(found) => {
                let owned = |(name, value): (&str, &str)| (name.into(), decoded(value));
                Lookup::Endpoint(
                    &self.endpoints[*found.value],
                    Params(found.params.iter().map(owned).collect()),
                )
            }
            Err(_) => Lookup::Unlisted,
        }
    }
}

/// The path as lookups compare it. Borrows where there is nothing to change, which is nearly always.
fn normal(path: &str) -> Cow<'_, str> {
    let plain = !path.contains('%')
        && !path.contains("//")
        && !path.contains("/.")
        && (path.len() == 1 || !path.ends_with('/'));
    if plain {
        return Cow::Borrowed(path);
    }
    let decoded = decode_unreserved(path);
    let mut segments: Vec<&str> = Vec::new();
    for segment in decoded.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    Cow::Owned(format!("/{}", segments.join("/")))
}

/// Decodes only what needs no encoding, so that no new separator appears.
fn decode_unreserved(path: &str) -> String {
    let plain = percent_decoded(path, |b| b.is_ascii_alphanumeric() || b"-._~".contains(&b));
    // Only ASCII was put in.
    String::from_utf8(plain).unwrap_or_else(|_| path.to_owned())
}

/// The value of a parameter. What decodes to no UTF-8 stays as it was sent.
fn decoded(value: &str) -> Box<str> {
    String::from_utf8(percent_decoded(value, |_| true)).unwrap_or_else(|_| value.to_owned()).into()
}

fn percent_decoded(text: &str, which: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let byte = match tail {
            [high, low, ..] if *first == b'%' => hex(*high).zip(hex(*low)).map(|(high, low)| high << 4 | low),
            _ => None,
        };
        match byte.filter(|byte| which(*byte)) {
            Some(byte) => {
                plain.push(byte);
                rest = &tail[2..];
            }
            None => {
                plain.push(*first);
                rest = tail;
            }
        }
    }
    plain
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_path_are_one_path() {
        for (sent, compared) in [
            ("/orders", "/orders"),
            ("/", "/"),
            ("", ""),
            ("/orders/", "/orders"),
            ("//orders///7", "/orders/7"),
            ("/%6Frders", "/orders"),
            ("/x/../orders/./7", "/orders/7"),
            ("/x/%2e%2e/orders", "/orders"),
            ("/../../orders", "/orders"),
            // A slash inside a segment stays inside it, and what is no encoding stays as it is.
            ("/orders%2F7", "/orders%2F7"),
            ("/orders/100%", "/orders/100%"),
            ("/%+1/%zz", "/%+1/%zz"),
            ("/caf%C3%A9/", "/caf%C3%A9"),
            ("/Orders", "/Orders"),
        ] {
            assert_eq!(normal(sent), compared, "{sent:?}");
        }
    }

    #[test]
    fn plain_paths_cost_no_allocation() {
        assert!(matches!(normal("/orders/7"), Cow::Borrowed(_)));
    }
}
