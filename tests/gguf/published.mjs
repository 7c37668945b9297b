// Prints the ids of the texts in JOB.texts by the tokenizer.json JOB.file.
//   published.mjs JOB OUT
import fs from 'fs';
import library from '@anush008/tokenizers';

const job = JSON.parse(fs.readFileSync(process.argv[2], 'utf8'));
const tokenizer = library.Tokenizer.fromString(fs.readFileSync(job.file, 'utf8'));
const ids = [];
for (const text of job.texts) ids.push((await tokenizer.encode(text, null, { addSpecialTokens: false })).getIds());
fs.writeFileSync(process.argv[3], JSON.stringify(ids));
