//! The string at a place of a JSON body, found in one pass without building the document.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::pointer::JsonPointer;

/// What is at the place.
pub(super) enum Found<'a> {
    /// Nothing or `null`, or the body is not JSON.
    Nothing,
    Text(Cow<'a, str>),
    /// A value of another kind.
    NotText,
    /// A member on the way, or the last one, is there twice.
    Several,
}

pub(super) fn find<'a>(body: &'a [u8], pointer: &JsonPointer) -> Found<'a> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let found = Seek { steps: pointer.tokens() }.deserialize(&mut json);
    // Half a document has no fields either: to its end.
    match (found, json.end()) {
        (Ok(found), Ok(())) => found,
        _ => Found::Nothing,
    }
}

/// Descends along the remaining steps.
struct Seek<'p> {
    steps: &'p [String],
}

impl<'de> DeserializeSeed<'de> for Seek<'_> {
    type Value = Found<'de>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Found<'de>, D::Error> {
        json.deserialize_any(self)
    }
}

impl Seek<'_> {
    /// What a value without entries is: the place itself, or something that the place cannot lie in.
    fn scalar<'de, E>(&self, at_the_place: Found<'de>) -> Result<Found<'de>, E> {
        Ok(if self.steps.is_empty() { at_the_place } else { Found::Nothing })
    }
}

impl<'de> Visitor<'de> for Seek<'_> {
    type Value = Found<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Found<'de>, E> {
        self.scalar(Found::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Found<'de>, E> {
        self.scalar(Found::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_unit<E>(self) -> Result<Found<'de>, E> {
        Ok(Found::Nothing)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Found<'de>, E> {
        self.scalar(Found::NotText)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Found<'de>, E> {
        self.scalar(Found::NotText)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Found<'de>, E> {
        self.scalar(Found::NotText)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Found<'de>, E> {
        self.scalar(Found::NotText)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Found<'de>, A::Error> {
        let next = self.steps.split_first();
        let mut found = None;
        while let Some(name) = members.next_key::<String>()? {
            match next {
                Some((step, steps)) if *step == name => {
                    let inside = members.next_value_seed(Seek { steps })?;
                    found = Some(if found.is_some() { Found::Several } else { inside });
                }
                _ => drop(members.next_value::<IgnoredAny>()?),
            }
        }
        Ok(match next {
            Some(_) => found.unwrap_or(Found::Nothing),
            None => Found::NotText,
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Found<'de>, A::Error> {
        let next = self.steps.split_first();
        let mut found = Found::Nothing;
        for index in 0_usize.. {
            let here = next.filter(|(step, _)| **step == index.to_string());
            match here {
                Some((_, steps)) => match entries.next_element_seed(Seek { steps })? {
                    Some(inside) => found = inside,
                    None => break,
                },
                None if entries.next_element::<IgnoredAny>()?.is_none() => break,
                None => {}
            }
        }
        Ok(if next.is_none() { Found::NotText } else { found })
    }
}
