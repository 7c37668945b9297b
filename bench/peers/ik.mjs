// Runs an installed ik_llama.cpp through ik_turns.cpp, which is compiled against it.
import {createHash} from "node:crypto";
import fs from "node:fs";
import path from "node:path";

import {Failure, Talker, run, say, scratch} from "./processes.mjs";
import {outdated, root} from "./tools.mjs";

const source = path.join(root, "bench/peers/ik_turns.cpp");

// Compiles the program for the build in this directory, and links the build's libraries in place.
async function compiled(build) {
  const there = (...parts) => {
    const file = path.join(build, ...parts);
    if (!fs.existsSync(file))
      throw new Failure(`${file}: not there; expected a directory that ik_llama.cpp was built in`);
    return file;
  };
  const cache = there("CMakeCache.txt"), libraries = [there("src/libllama.so"), there("ggml/src/libggml.so")];
  const tree = /^CMAKE_HOME_DIRECTORY:INTERNAL=(.+)$/m.exec(fs.readFileSync(cache, "utf8"))?.[1];
  if (!tree) throw new Failure(`${cache}: expected CMAKE_HOME_DIRECTORY, found none`);
  const file = path.join(scratch, "ik_turns-" + createHash("sha256").update(build).digest("hex").slice(0, 8));
  if (outdated(file, [source, ...libraries])) {
    say(`writing ${file}`);
    const part = `${file}.${process.pid}`;
    const headers = [path.join(tree, "include"), path.join(tree, "ggml/include")]
      .flatMap((directory) => ["-I", directory]);
    const rpath = libraries.map((library) => `-Wl,-rpath,${path.dirname(library)}`);
    await run(process.env.CXX ?? "c++", ["-std=c++17", "-O2", ...headers, source, ...libraries, ...rpath, "-o", part]);
    fs.renameSync(part, file);
  }
  return file;
}

export async function ikLlama(directory) {
  const build = path.resolve(directory), program = await compiled(build);
  return {
    hasState: false,
    quantize: path.join(build, "bin/llama-quantize"),
    about: async () => `ik_llama.cpp, ${build}`,
    prepare: async (job) => ({...job, flash: true}),
    start: ({gguf, prompt, decode, batch, threads}) => Talker.start(program, [gguf, prompt, decode, batch, threads]),
  };
}
