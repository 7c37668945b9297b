// Makes invisible characters visible that change the text around them: directions, zero widths, controls, tags.
const kMarks = new RegExp("[" + [
  "\\u0000-\\u0008\\u000b\\u000c\\u000e-\\u001f\\u007f-\\u009f",  // controls, without tab and line ends
  "\\u00ad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f",
  "\\ufeff\\ufff9-\\ufffb\\u{e0000}-\\u{e007f}",
].join("") + "]", "gu");
const kNames = {
  "U+061C": "Arabic letter mark", "U+200B": "zero width space",
  "U+200E": "left-to-right mark", "U+200F": "right-to-left mark",
  "U+202A": "left-to-right embedding", "U+202B": "right-to-left embedding", "U+202C": "pop directional formatting",
  "U+202D": "left-to-right override", "U+202E": "right-to-left override", "U+2066": "left-to-right isolate",
  "U+2067": "right-to-left isolate", "U+2068": "first strong isolate", "U+2069": "pop directional isolate",
};

const code = (mark) => "U+" + mark.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");

// Splits a text into strings and marks: ["a", {sign: "U+202E", name: "right-to-left override"}, "b"].
export function pieces(text) {
  const parts = [];
  let from = 0;
  for (const { 0: mark, index } of text.matchAll(kMarks)) {
    if (index > from) parts.push(text.slice(from, index));
    const sign = code(mark);
    parts.push({ sign, name: kNames[sign] ?? "invisible character" });
    from = index + mark.length;
  }
  if (from < text.length || parts.length === 0) parts.push(text.slice(from));
  return parts;
}

// Returns plain text with signs, for titles, options and file names.
export const plain = (text) => pieces(text).map((p) => typeof p === "string" ? p : `⟨${p.sign}⟩`).join("");
export const countSigns = (text) => pieces(text).filter((p) => typeof p !== "string").length;
