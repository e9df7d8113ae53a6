//! Where requests go and what they are: bases, operations, claims.

use retrysafe_core::contract::walk::{Item, Section, Wrong, header, said};

use super::fields::{CLAIM, OPERATION, SETUP};
use super::read::{Env, Outside};
use super::{Base, Claim, HeaderLine, Operation, Setup, Template};
use crate::trust::Trust;

/// The authorities that the plan or its reader names; else those that browsers trust.
pub(super) fn trust(root: &Section<'_>, outside: Outside<'_>) -> Option<Trust> {
    let read = |path: &str| {
        let text = (outside.file)(path).map_err(|why| format!("{path} cannot be read: {why}"))?;
        Trust::only(&text, path).map_err(|why| format!("{path} holds no certificates: {why}"))
    };
    let help = "name a file with the certificate of the API's authority, in PEM";
    let named = root.get("ca");
    if let Some(path) = outside.ca {
        return read(path).map_err(|why| root.fault("ca", why, help)).ok();
    }
    match named {
        Some(item) => item.text(|path| read(path).map_err(|why| (why, help.to_owned()))),
        None => Trust::public().map_err(|why| root.fault("ca", why, help)).ok(),
    }
}

pub(super) fn bases(root: &Section<'_>, trust: Option<&Trust>) -> Vec<Base> {
    let Some(item) =
        root.require("base", "a gate has to know where the API is", "write base = \"http://127.0.0.1:8080\"")
    else {
        return Vec::new();
    };
    let first: Vec<Base> = if item.is_list() {
        item.list().iter().filter_map(|one| one.text(base(trust))).collect()
    } else {
        item.text(base(trust)).into_iter().collect()
    };
    if first.is_empty() {
        item.fault("there is no address in it", "write base = \"http://127.0.0.1:8080\"");
    }
    first
}

/// `http://host:port/prefix`. Without a `trust` (it is a fault that was told already) TLS is taken for granted and not spoken.
pub(crate) fn base(trust: Option<&Trust>) -> impl Fn(&str) -> Result<Base, Wrong> + '_ {
    move |text| {
        let help = "write \"http://127.0.0.1:8080\"".to_owned();
        let wrong = |message: String| Err((message, help.clone()));
        let (rest, port, trust) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => (rest, 80, None),
            (_, Some(rest)) => (rest, 443, trust.cloned()),
            _ => return wrong(format!("{text:?} is not an HTTP address")),
        };
        let (authority, prefix) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => match port.parse() {
                Ok(port) => (host, port),
                Err(_) => return wrong(format!("{port:?} is not a port")),
            },
            _ => (authority, port),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() || host.contains('@') || !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
            return wrong(format!("{text:?} is not an HTTP address"));
        }
        Ok(Base {
            authority: authority.to_owned(),
            host: host.to_owned(),
            port,
            prefix: prefix.trim_end_matches('/').to_owned(),
            trust,
        })
    }
}

pub(super) fn operation(item: &Item<'_>, env: Env<'_>) -> Option<Operation> {
    operation_of(&item.section(OPERATION)?, env)
}

pub(super) fn operation_of(section: &Section<'_>, env: Env<'_>) -> Option<Operation> {
    let method = section.text("method", |text| match text {
        "POST" | "PUT" | "PATCH" | "DELETE" => Ok(text.to_owned()),
        _ => Err((
            format!("{text:?} changes nothing, or is no method"),
            "write POST, PUT, PATCH or DELETE".to_owned(),
        )),
    });
    let path = section
        .require("path", "an operation has a path", "write path = \"/orders\"")
        .and_then(|item| item.text(|text| path(text, env)));
    let headers = headers(section, env);
    let body = section.text("body", template(env));
    Some(Operation { method: method.unwrap_or_else(|| "POST".to_owned()), path: path?, headers, body })
}

pub(super) fn path(text: &str, env: Env<'_>) -> Result<Template, Wrong> {
    let plain = text.split("{{").next().unwrap_or_default();
    if !text.starts_with('/') || !plain.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err((
            format!("{text:?} is not a path"),
            "write the path from its slash: \"/orders\"".to_owned(),
        ));
    }
    template(env)(text)
}

pub(super) fn headers(section: &Section<'_>, env: Env<'_>) -> Vec<HeaderLine> {
    let Some(item) = section.get("headers") else { return Vec::new() };
    let mut lines = Vec::new();
    for (name, at, value) in Section::entries(&item) {
        if let Err((message, help)) = header(name) {
            item.fault_at(at, message, help);
            continue;
        }
        let read = value.text(|text| {
            if !text.bytes().all(|byte| matches!(byte, 0x20..=0x7e)) {
                return Err((
                    "a header value has characters that headers cannot carry".to_owned(),
                    "write visible ASCII".to_owned(),
                ));
            }
            template(env)(text)
        });
        lines.extend(read.map(|value| HeaderLine { name: name.to_owned(), value }));
    }
    lines
}

pub(super) fn claim(item: &Item<'_>, env: Env<'_>) -> Option<Claim> {
    let section = item.section(CLAIM)?;
    let operation = operation_of(&section, env);
    let read = section
        .require("read", "the state is read before and after", "write read = \"/orders/{{id}}\"")
        .and_then(|item| item.text(|text| path(text, env)));
    let newer_body = section.text("newer_body", template(env));
    let volatile = section.list("volatile", said, Vec::new());
    let setup = section.get("setup").and_then(|item| {
        let section = item.section(SETUP)?;
        let id = section.text("id", |text| match text.starts_with('/') {
            true => Ok(text.to_owned()),
            false => Err((format!("{text:?} is not a JSON pointer"), format!("write \"/{text}\""))),
        });
        Some(Setup { operation: operation_of(&section, env)?, id })
    });
    Some(Claim { operation: operation?, read: read?, newer_body, volatile, setup })
}

pub(super) fn template(env: Env<'_>) -> impl Fn(&str) -> Result<Template, Wrong> + '_ {
    move |text| {
        Template::read(text, env)
            .map_err(|fault| (fault, "write the text, with {{nonce}} where operations differ".to_owned()))
    }
}
