// Starts programs that end with this process, however it ends.
import {spawn} from "node:child_process";
import {once} from "node:events";
import os from "node:os";
import readline from "node:readline";

export const scratch = process.env.STET_PEERS_DIR;  // holds all files

export class Failure extends Error {}

export const say = (line) => process.stderr.write(line + "\n");

const running = new Set();
process.on("exit", () => running.forEach((child) => child.kill("SIGKILL")));
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"])
  process.on(signal, () => process.exit(128 + os.constants.signals[signal]));

class Program {
  constructor(command, args) {
    this.command = command;
    this.complaint = "";
    this.child = spawn(command, args.map(String), {env: {...process.env, TMPDIR: scratch}});
    this.child.stdin.on("error", () => {});  // end() reports that it has ended
    this.child.stderr.setEncoding("utf8").on("data", (text) => {
      this.complaint = (this.complaint + text).slice(-4000);
    });
    running.add(this.child);
    this.ended = once(this.child, "close").then(([status, signal]) => ({status, signal}), (error) => ({error}));
    this.ended.then(() => running.delete(this.child));
  }

  // Closes its input and waits for its end. Throws a Failure with the last line of its errors if it
  // fails.
  async end() {
    this.child.stdin.end();
    const {status, signal, error} = await this.ended;
    if (error) throw new Failure(`${this.command}: ${error.message}`);
    if (signal) throw new Failure(`${this.command}: ended by ${signal}`);
    if (status !== 0)
      throw new Failure(this.complaint.trim().split("\n").at(-1) || `${this.command}: ended by ${status}`);
  }
}

// Returns the standard output of a command.
export async function run(command, args) {
  const program = new Program(command, args), pieces = [];
  program.child.stdout.on("data", (piece) => pieces.push(piece));
  await program.end();
  return Buffer.concat(pieces).toString();
}

// A program that describes itself, `about`, in a line of JSON, and then answers each line with a
// line of JSON: `stet bench --turns`.
export class Talker extends Program {
  static async start(command, args) {
    const talker = new Talker(command, args);
    talker.lines = readline.createInterface({input: talker.child.stdout})[Symbol.asyncIterator]();
    talker.about = await talker.answer();
    return talker;
  }
  get pid() { return this.child.pid; }

  ask(line) {
    this.child.stdin.write(line + "\n");
    return this.answer();
  }

  async answer() {
    const {value, done} = await this.lines.next();
    if (done) {
      await this.end();
      throw new Failure(`${this.command}: expected an answer, found its end`);
    }
    try {
      return JSON.parse(value);
    } catch {
      throw new Failure(`${this.command}: expected a line of JSON, found ${value.slice(0, 60)}`);
    }
  }
}
