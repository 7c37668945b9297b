"""Files that `stet serve` keeps in --state-dir: which files it touches, how it survives a lost
file or a signal, and which states it discards.

    files.py STET ROOT
"""
import concurrent.futures
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from api import MODEL, STET, Server, request_of, unread_reply

LONG = "Let a = 3. Let b = 4. Let c = 5. What is a plus b plus c? " * 3  # more than two blocks
DOWNLOAD = "st_%032x.stet" % 7  # the name that the page gives to a download


def read(path):
    with open(path, "rb") as file:
        return file.read()


def ids(count, step=7):
    return [(step * i) % 400 + 2 for i in range(count)]


KINDS = {"pipe": os.mkfifo, "folder": os.mkdir}


def in_place_of(path, kind):
    """Replaces a file with something that is none."""
    os.unlink(path)
    KINDS[kind](path)


class Directory(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.scratch)
        self.directory = os.path.join(self.scratch, "states")

    def path(self, *names):
        return os.path.join(self.directory, *names)

    def server(self, *options, **more):
        server = Server("--state-dir", self.directory, *options, **more)
        self.addCleanup(lambda: server.process.poll() is None and server.kill())
        return server

    def refusal(self, *options):
        """Returns the one-line error of a server that does not start."""
        done = subprocess.run([STET, "serve", "-m", MODEL, "--port", "0", "--state-dir", self.directory, *options],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(done.stdout, "")
        return done.stderr

    def content(self):
        """Returns every path below the directory with its type, mode and bytes."""
        found = {}
        for folder, folders, files in os.walk(self.directory):
            for name in folders + files:
                path = os.path.join(folder, name)
                info = os.lstat(path)
                found[os.path.relpath(
                    path,
                    self.directory)] = (info.st_mode,
                                        read(path) if os.path.isfile(path) and not os.path.islink(path) else None)
        return found

    def write(self, name, data=b"mine"):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "wb") as file:
            file.write(data)

    def states(self, server):
        return {s["id"]: s for s in server.get("/v1/states")["data"]}

    def make(self, server, text, **more):
        return server.post("/v1/states", {"messages": [{"role": "user", "content": text}], **more})

    def files(self, ending=".stet"):
        return sorted(name for name in os.listdir(self.directory) if name.endswith(ending))


class Ownership(Directory):
    def test_a_new_directory_is_its_owners_alone(self):
        self.directory = os.path.join(self.scratch, "above", "states")
        server = self.server()
        self.assertEqual(os.stat(self.directory).st_mode & 0o777, 0o700)
        server.stop()
        self.assertEqual(sorted(self.content()), ["lock", "secret", "stet-states"])
        self.server().stop()

    def test_an_empty_directory_is_taken_and_keeps_its_mode(self):
        os.makedirs(self.path("lost+found"))
        os.chmod(self.directory, 0o755)
        self.write("secret.tmp-0123456789abcdef", b"half")  # left by a start that was killed
        self.server().stop()
        self.assertEqual(os.stat(self.directory).st_mode & 0o777, 0o755)
        self.assertTrue(os.path.isdir(self.path("lost+found")))

    def test_any_other_directory_is_refused_and_stays_as_it_was(self):
        for files in ({"mine.stet": b"x"}, {"notes/a.txt": b"x"}, {"secret": b"x" * 31},
                      {"secret": b"x" * 32, "notes.txt": b"x"}, {DOWNLOAD: b"x", "README.md": b"x"},
                      {"secret": b"x" * 32,
                       "package.json": b"{}"}, {"lock": b"pid 1"}, {"stet-states": b"stet states 2\n"}):
            shutil.rmtree(self.directory, ignore_errors=True)
            for name, data in files.items():
                self.write(name, data)
            os.chmod(self.directory, 0o750)
            before = self.content()
            self.assertIn(self.directory, self.refusal(), files)
            self.assertEqual(self.content(), before)
            self.assertEqual(os.stat(self.directory).st_mode & 0o777, 0o750)

    def test_a_directory_that_others_may_write_to_is_refused(self):
        os.makedirs(self.directory)
        for mode in (0o777, 0o720, 0o1777):
            os.chmod(self.directory, mode)
            self.assertIn(
                "permissions: expected a directory that nobody else may write to (chmod go-w), found %o" % mode,
                self.refusal())
        os.chmod(self.directory, 0o700)
        if os.geteuid() == 0:
            os.chown(self.directory, 12345, 12345)
            self.assertIn("owner: expected a directory of the user who runs the server, 0, found 12345", self.refusal())
        self.assertEqual(self.content(), {})

    def test_a_lock_that_is_no_file_is_not_followed(self):
        self.server().stop()
        target = os.path.join(self.scratch, "target")
        for make in (lambda: os.symlink(target, self.path("lock")), lambda: os.mkfifo(self.path("lock"))):
            os.unlink(self.path("lock"))
            make()
            self.assertIn("/lock: expected a", self.refusal())
            self.assertFalse(os.path.exists(target))

    def test_a_directory_of_an_older_server_is_adopted(self):
        server = self.server()
        kept = self.make(server, LONG)["id"]
        other = self.make(server, LONG + "And?")["id"]
        server.stop()
        for name in ["stet-states", "lock", *self.files(".recipe")]:  # an older server wrote neither
            os.unlink(self.path(name))
        strangers = {"mine.stet": b"a snapshot of mine", DOWNLOAD: b"a download", "half.tmp-x": b"half"}
        for name, data in strangers.items():
            self.write(name, data)
        self.write("lost+found/found", b"something")
        os.chmod(self.directory, 0o755)
        server = self.server()
        for state in (kept, other):
            self.assertTrue(server.post("/v1/states/%s/verify" % state, {})["same_bits"])
            server.call("DELETE", "/v1/states/" + state)
        said = server.stop()
        self.assertEqual(said.count("adopted"), 1, said)
        self.assertIn("ignored, because no state of this server describes them: mine.stet, " + DOWNLOAD, said)
        self.assertNotIn("adopted", self.server().stop())
        for name, data in strangers.items():
            self.assertEqual(read(self.path(name)), data)
        self.assertTrue(os.path.exists(self.path("lost+found/found")))
        self.assertEqual(os.stat(self.directory).st_mode & 0o777, 0o755)
        self.assertEqual(self.files(), sorted(["mine.stet", DOWNLOAD]))

    def test_only_what_the_server_has_written_is_swept(self):
        server = self.server("--durable")
        state = self.make(server, "Let a = 3.")["id"]
        server.kill()
        mine = {
            DOWNLOAD: b"x", "mine.stet": b"x", "notes.json": b"x", "st_1.recipe": b"x", state + ".stet.tmp-1": b"x",
            "notes.tmp-0123456789abcdef": b"x", "st_%032x.recipe" % 9: b"x"
        }
        left = [state + ".json.tmp-0123456789abcdef", "st_%032x.recipe.tmp-0123456789abcdef" % 9]
        for name in [*mine, *left]:
            self.write(name, b"x")
        self.server().stop()
        there = self.content()
        for name in mine:
            self.assertIn(name, there)
        for name in left:
            self.assertNotIn(name, there)

    def test_directories_named_like_files_keep_no_server_from_starting(self):
        server = self.server("--durable")
        state = self.make(server, "Let a = 3.")["id"]
        server.kill()
        names = [state + ".gone", "st_%032x.gone" % 9, "st_%032x.json" % 9, "st_%032x.recipe" % 9, "st_%032x.stet" % 9]
        for name in names:
            os.mkdir(self.path(name))
        server = self.server()
        self.assertEqual(list(self.states(server)), [state])
        server.stop()
        for name in names:
            self.assertTrue(os.path.isdir(self.path(name)), name)

    def test_a_file_of_somebody_elses_in_the_way_stays(self):
        server = self.server("--memory", "0")
        state = self.make(server, LONG)
        server.call("DELETE", "/v1/states/" + state["id"])
        self.write(state["id"] + ".stet", b"a download")
        self.assertEqual(self.make(server, LONG)["id"], state["id"])
        server.stop()
        server = self.server("--memory", "0")
        self.assertTrue(server.post("/v1/states/%s/verify" % state["id"], {})["same_bits"])
        self.assertEqual(server.call("DELETE", "/v1/states/" + state["id"])[0], 200)
        server.stop()
        self.assertEqual(read(self.path(state["id"] + ".stet")), b"a download")

    def test_one_directory_has_one_server(self):
        server = self.server()
        said = self.refusal("--stop-seconds", "0")
        self.assertIn(
            "lock: expected a directory that no other server uses, found one that another server still used after 5 s",
            said)
        os.unlink(self.path("lock"))  # as a user does who takes it for a leftover
        self.assertIn("another server still used", self.refusal("--stop-seconds", "0"))
        state = self.make(server, "Let a = 3.")["id"]
        # A server that starts before the previous one has ended waits for it.
        next_one = subprocess.Popen([STET, "serve", "-m", MODEL, "--port", "0", "--state-dir", self.directory],
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(next_one.communicate)
        self.addCleanup(next_one.kill)
        self.assertIn("waiting for the server that uses it", next_one.stderr.readline())
        server.stop()
        server.process, server.port = next_one, int(next_one.stdout.readline().rsplit(":", 1)[1].strip("/\n"))
        self.assertEqual(server.get("/v1/states/" + state)["id"], state)
        server.stop()


def edited(directory, server):
    """Edits keys and values of a state, so that its tokens no longer reproduce it. Returns the
    server's description."""
    path, changed = os.path.join(directory, "before.stet"), os.path.join(directory, "after.stet")
    subprocess.run([STET, "generate", "-m", MODEL, "--prompt", LONG, "-n", "0", "--save", path], check=True,
                   capture_output=True)
    subprocess.run([STET, "edit", path, "-m", MODEL, "--scale", "0.5", "--layers", "0", "-o", changed], check=True,
                   capture_output=True)
    with open(changed, "rb") as file:
        status, answer = server.call("POST", "/v1/states/upload", raw=file.read())
    assert status == 200, answer
    return answer


class Ending(Directory):
    def limited(self, size):
        """Returns a server whose files are limited to `size` bytes."""
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            return self.server()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    def test_states_that_cannot_be_written_do_not_stand_before_others(self):
        server = self.limited(500 * 1024)
        large = server.post("/v1/chat/completions", request_of("Let a = 3. " * 30, n=4))
        small = server.post("/v1/chat/completions", request_of("Let b = 4.", n=12))
        said = server.stop()
        self.assertIn(
            "%s: kept as its tokens: %s: cannot write" %
            (large["state_id"], self.path(large["state_id"] + ".stet")), said)
        self.assertIn("File too large", said)
        self.assertIn(small["state_id"] + ".stet", self.files())
        server = self.server()
        for answer in (large, small):
            self.assertEqual(
                server.get("/v1/states/" + answer["state_id"])["digest"], answer["choices"][0]["state_digest"])
            self.assertTrue(server.post("/v1/states/%s/verify" % answer["state_id"], {})["same_bits"])
        server.stop()

    def test_a_template_sees_variables_in_the_same_order_after_a_restart(self):
        template = os.path.join(self.scratch, "t.jinja")
        with open(template, "w") as file:
            file.write("{{ a|tojson }}{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"
                       "{% if add_generation_prompt %}<assistant>{% endif %}")
        server = self.server("--chat-template", template)
        first = self.make(server, "Let b = 4.", template_variables={"a": {"y": [{"q": 1, "c": 2}], "b": 1.5}})["id"]
        more = {"messages": [{"role": "user", "content": "What is b?"}], "resume_from": first, "max_tokens": 9}
        replies = [server.post("/v1/chat/completions", more)["choices"][0]]
        server.stop()
        server = self.server("--chat-template", template)
        replies.append(server.post("/v1/chat/completions", more)["choices"][0])
        server.stop()
        self.assertEqual(*[(reply["message"]["content"], reply["state_digest"]) for reply in replies])

    def test_variables_that_no_file_takes_are_refused(self):
        server = self.server()
        for name, body in (("/v1/states", {}), ("/v1/chat/completions", {"max_tokens": 1})):
            status, answer = server.call("POST", name, {**request_of("Hi"), **body, "template_variables":
                                                        {"x": "a" * (8 << 20)}} if body else
                                         {"messages": request_of("Hi")["messages"],
                                          "template_variables": {"x": "a" * (8 << 20)}})
            self.assertEqual((status, answer["error"]["param"]), (400, "/template_variables"))
            self.assertIn("expected at most 8388608 bytes of JSON, found 8388616", answer["error"]["message"])
        state = self.make(server, "Hi", template_variables={"x": "a" * ((8 << 20) - 8)})["id"]
        server.stop()
        server = self.server()
        self.assertTrue(server.post("/v1/states/%s/verify" % state, {})["same_bits"])
        server.stop()

    def test_a_state_that_no_file_takes_is_named_and_told_by_the_exit_status(self):
        server = self.limited(300 * 1024)
        state = edited(self.scratch, server)["id"]
        server.process.send_signal(signal.SIGTERM)
        said = server.process.communicate(timeout=60)[1]
        self.assertEqual(server.process.returncode, 1)
        self.assertRegex(said, "%s: not saved: .*File too large" % state)
        server = self.server()
        self.assertEqual(self.states(server), {})
        server.stop()

    def test_when_no_time_is_left_tokens_are_kept_and_what_they_do_not_give(self):
        server = self.server("--stop-seconds", "0")
        plain = [self.make(server, LONG + str(i)) for i in range(4)]
        uploaded = server.call("GET", "/v1/states/%s/snapshot" % plain[0]["id"])[1]
        server.call("DELETE", "/v1/states/" + plain[0]["id"])
        status, uploaded = server.call("POST", "/v1/states/upload", raw=uploaded)
        changed = edited(self.scratch, server)
        said = server.stop()
        self.assertIn("3 states are kept as their tokens: no time was left for their keys and values", said)
        self.assertEqual(self.files(), sorted(s["id"] + ".stet" for s in (uploaded, changed)))
        server = self.server()
        self.assertEqual(set(self.states(server)), {s["id"] for s in (*plain, uploaded, changed)})
        for s in plain[1:]:
            more = server.post("/v1/states/%s/continue" % s["id"],
                               {"message": {"role": "user", "content": "?"}, "max_tokens": 1})
            self.assertEqual(more["usage"]["reason"], "the state was kept as its tokens: computed again")
            self.assertTrue(server.post("/v1/states/%s/verify" % s["id"], {})["same_bits"])
        self.assertEqual(server.get("/v1/states/" + changed["id"])["digest"], changed["digest"])
        report = server.post("/v1/states/%s/verify" % changed["id"], {})
        self.assertEqual((report["same_bits"], report["difference"], report["proved"]["whole"]), (False, None, False))
        self.assertTrue(report["proved"]["reason"])
        server.stop()

    def test_a_base_that_is_lost_keeps_nothing_from_being_saved(self):
        server = self.server("--memory", "1")
        first = self.make(server, LONG * 2)["id"]
        for i in range(8):  # evicts the state from memory
            self.make(server, "%d %d Let k = %d. %s" % (i, i, i, LONG * 2))
        self.assertIn(first + ".stet", self.files())
        later = [
            self.make(server, LONG * 2 + "And then?")["id"],
            self.make(server, "What is the sum of 3 and 5?")["id"]
        ]
        os.unlink(self.path(first + ".stet"))
        server.stop()
        server = self.server("--memory", "1")
        for state in (first, *later):
            self.assertTrue(server.post("/v1/states/%s/verify" % state, {})["same_bits"])
        server.stop()


class Lost(Directory):
    def evicted(self, server):
        """Returns a state whose keys and values are only in a file."""
        state = self.make(server, LONG)
        for i in range(12):
            self.make(server, "%d %d Let k = %d. %s" % (i, i, i, LONG * 2))
        self.assertFalse(self.states(server)[state["id"]]["resident"])
        self.assertIn(state["id"] + ".stet", self.files())
        return state

    def damage(self, state, how):
        """Damages files whose loss costs only time."""
        stet, recipe = self.path(state + ".stet"), self.path(state + ".recipe")
        if how == "both":
            os.unlink(recipe)
        if how in ("gone", "both"):
            return os.unlink(stet)
        if how in KINDS:
            return in_place_of(stet, how)
        size = os.path.getsize(stet)
        with open(stet, "r+b") as file:
            if how == "cut":
                return file.truncate(size // 2)
            file.seek({"in front": 300, "in a block": size - 5000}[how])
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 0x28]))

    def test_a_file_that_is_lost_or_damaged_while_the_server_runs_costs_time(self):
        for how in ("gone", "both", "cut", "in front", "in a block", *KINDS):
            with self.subTest(how=how):
                shutil.rmtree(self.directory, ignore_errors=True)
                server = self.server("--memory", "1")
                state = self.evicted(server)
                self.damage(state["id"], how)
                for text in (LONG + "And then?", LONG + "And now?"):  # share a beginning
                    self.assertEqual(server.call("POST", "/v1/chat/completions", request_of(text, n=2))[0], 200)
                self.assertTrue(server.post("/v1/states/%s/verify" % state["id"], {})["same_bits"])
                server.stop()
                server = self.server()
                self.assertTrue(server.post("/v1/states/%s/verify" % state["id"], {})["same_bits"])
                server.stop()

    def test_a_file_that_is_lost_or_damaged_while_no_server_runs_costs_time(self):
        server = self.server("--memory", "1")
        state = self.evicted(server)
        server.stop()
        whole = read(self.path(state["id"] + ".stet"))
        for how in ("gone", *KINDS, "cut", "in front", "in a block"):
            with self.subTest(how=how):
                if not os.path.isfile(self.path(state["id"] + ".stet")):
                    os.rename(self.path(state["id"] + ".stet"), self.path("aside-" + how))
                with open(self.path(state["id"] + ".stet"), "wb") as file:
                    file.write(whole)
                self.damage(state["id"], how)
                server = self.server()
                self.assertEqual(
                    server.call("POST", "/v1/chat/completions", request_of(LONG + "And then?", n=2))[0], 200)
                verified = server.post("/v1/states/%s/verify" % state["id"], {})
                self.assertEqual((verified["same_bits"], verified["digest"]), (True, state["digest"]))
                server.stop()

    def test_what_is_no_file_is_moved_aside(self):
        for kind in KINDS:
            for ending in (".json", ".recipe", ".stet"):
                with self.subTest(kind=kind, ending=ending):
                    shutil.rmtree(self.directory, ignore_errors=True)
                    server = self.server("--durable", "--memory", "1")
                    state = self.evicted(server)["id"]
                    in_place_of(self.path(state + ending), kind)
                    self.assertEqual(server.call("PATCH", "/v1/states/" + state, {"name": "mine"})[0], 200)
                    self.assertEqual(server.call("POST", "/v1/states/%s/continue" % state, {"max_tokens": 2})[0], 200)
                    self.assertTrue(server.post("/v1/states/%s/verify" % state, {})["same_bits"])
                    server.stop()
                    server = self.server("--durable")
                    self.assertEqual(self.states(server)[state]["name"], "mine")
                    in_place_of(self.path(state + ".json"), kind)
                    self.assertEqual(server.call("DELETE", "/v1/states/" + state)[0], 200)
                    self.assertNotIn(state, self.states(server))
                    server.stop()
                    self.assertNotIn(state, self.states(self.server()))
                    self.assertTrue(os.path.exists(self.path(state + ".json.aside")))

    def test_a_description_that_is_lost_or_damaged_costs_name_and_place(self):
        for how in (None, b"", b"{", b"[]", b'{"id":5}'):
            with self.subTest(how=how), tempfile.NamedTemporaryFile("w") as keys:
                keys.write("anna annas-key-1\nben bens-key-22\n")
                keys.flush()
                shutil.rmtree(self.directory, ignore_errors=True)
                options = ["--durable", "--memory", "0", "--api-key-file", keys.name]
                server, made = self.server(*options), []
                for i, key in enumerate(("annas-key-1", "annas-key-1", "bens-key-22", "bens-key-22")):
                    made.append((key, server.post("/v1/states", {
                        "messages": [{"role": "user", "content": LONG + str(i)}], "name": "mine"
                    }, key=key)))
                server.kill()
                for _, state in made[1:3]:  # one of each client, with keys and values in files
                    os.unlink(self.path(state["id"] + ".json"))
                    if how is not None:
                        self.write(state["id"] + ".json", how)
                server = self.server(*options)
                for i, (key, state) in enumerate(made):
                    there = server.get("/v1/states/" + state["id"], key=key)
                    self.assertEqual((there["digest"], there["excerpt"], there["question"]),
                                     (state["digest"], state["excerpt"], state["question"]))
                    self.assertEqual((there["name"], there["operation"]["name"]),
                                     (None, "recovered") if i in (1, 2) else ("mine", "create"))
                    self.assertTrue(server.post("/v1/states/%s/verify" % state["id"], {}, key=key)["same_bits"])
                    other = {"annas-key-1": "bens-key-22", "bens-key-22": "annas-key-1"}[key]
                    self.assertEqual(server.call("GET", "/v1/states/" + state["id"], key=other)[0], 404)
                server.kill()
                server = self.server(*options)  # with the new description
                for key, state in made:
                    self.assertEqual(server.get("/v1/states/" + state["id"], key=key)["digest"], state["digest"])
                    self.assertEqual(server.call("DELETE", "/v1/states/" + state["id"], key=key)[0], 200)
                server.stop()
                self.assertEqual(self.files(".json") + self.files(".recipe"), [])

    def test_the_description_of_a_streamed_response_too(self):
        server = self.server("--durable")
        body = {"input": "Let a = 3.", "max_output_tokens": 2, "stream": True}
        told = server.call("POST", "/v1/responses", body)[1].decode()
        response = told.split('"id":"resp_', 1)[1].split('"', 1)[0]
        server.kill()
        os.unlink(self.path("st_" + response + ".json"))
        server = self.server()  # it belongs to the only client
        self.assertEqual(server.get("/v1/responses/resp_" + response)["id"], "resp_" + response)
        server.stop()

    def test_all_descriptions_with_keys(self):
        for clients in (("anna",), ("anna", "ben")):
            with self.subTest(clients=clients), tempfile.NamedTemporaryFile("w") as keys:
                keys.write("".join("%s %ss-key-1\n" % (name, name) for name in clients))
                keys.flush()
                shutil.rmtree(self.directory, ignore_errors=True)
                server = self.server("--durable", "--api-key-file", keys.name)
                anna = {"key": "annas-key-1"}
                begun = request_of("Let a = 3.", n=8)
                begun["messages"].append({"role": "assistant", "content": "a is"})
                made = [server.post("/v1/chat/completions", body, **anna)["state_id"]
                        for body in (request_of("Let a = 3.", n=8), begun)]
                made.append(server.post("/v1/states/%s/fork" % made[0], {}, **anna)["id"])
                streamed = server.call("POST", "/v1/responses",
                                       {"input": "Let a = 3.", "max_output_tokens": 2, "stream": True}, **anna)[1]
                streamed = "st_" + streamed.decode().split('"id":"resp_', 1)[1].split('"', 1)[0]
                server.kill()
                for state in (*made, streamed):
                    os.unlink(self.path(state + ".json"))
                server = self.server("--durable", "--api-key-file", keys.name)
                there = {s["id"] for s in server.get("/v1/states", **anna)["data"]}
                self.assertEqual(there, {*made, *([streamed] if len(clients) == 1 else [])})
                said = server.stop()
                self.assertEqual("left out: %s (client: expected one whose name gives" % streamed in said,
                                 len(clients) == 2, said)

    def test_a_state_that_tokens_do_not_give_is_refused_by_name(self):
        server = self.server()
        state = edited(self.scratch, server)["id"]
        server.stop()
        os.unlink(self.path(state + ".stet"))
        server = self.server()
        for method, path in (("GET", ""), ("POST", "/continue"), ("POST", "/fork")):
            status, answer = server.call(method, "/v1/states/" + state + path, {} if method == "POST" else None)
            self.assertEqual((status, answer["error"]["code"]), (410, "state_lost"))
            self.assertIn(state, answer["error"]["message"])
        self.assertTrue(self.states(server)[state]["lost"])
        self.assertEqual(server.call("DELETE", "/v1/states/" + state)[0], 200)
        self.assertEqual(server.call("GET", "/v1/states/" + state)[0], 404)
        server.stop()
        self.assertNotIn(state + ".json", self.content())

    def test_the_same_while_the_server_runs(self):
        server = self.server("--memory", "0")
        state = edited(self.scratch, server)["id"]
        self.make(server, "Let a = 3.")  # evicts the other state from memory
        self.assertFalse(self.states(server)[state]["resident"])
        shutil.move(self.path(state + ".stet"), self.path("aside"))
        status, answer = server.call("GET", "/v1/states/" + state)
        self.assertEqual((status, answer["error"]["code"]), (410, "state_lost"))
        shutil.move(self.path("aside"), self.path(state + ".stet"))
        self.assertEqual(server.call("GET", "/v1/states/" + state)[0], 200)
        server.stop()

    def test_what_tokens_do_not_give_is_not_what_the_client_has_uploaded(self):
        """A replay never replaces uploaded keys and values that differ from those of the tokens,
        even if the snapshot records no edit."""
        server = self.server("--memory", "0")
        honest = self.make(server, LONG)
        snapshot = server.call("GET", "/v1/states/%s/snapshot" % honest["id"])[1]
        server.call("DELETE", "/v1/states/" + honest["id"])
        status, uploaded = server.call("POST", "/v1/states/upload", raw=snapshot)
        self.assertEqual((status, uploaded["id"], uploaded["origin"]), (200, honest["id"], "uploaded"))
        self.make(server, "Let a = 3.")
        os.unlink(self.path(honest["id"] + ".stet"))
        # Computed again with the same result.
        self.assertEqual(server.get("/v1/states/" + honest["id"])["digest"], honest["digest"])
        server.stop()


class Deleting(Directory):
    def test_a_state_that_is_made_again_has_its_files(self):
        for durable in ([], ["--durable"]):
            shutil.rmtree(self.directory, ignore_errors=True)
            server = self.server("--memory", "0", *durable)
            first = server.post("/v1/states", {"ids": ids(200)})
            server.get("/v1/states/%s/top" % first["id"])
            server.post("/v1/states", {"ids": [9, 9, 2]})
            second = server.post("/v1/states", {"ids": ids(200) + [5] * 70})
            server.post("/v1/states", {"ids": [9, 9, 3]})
            sizes = {name: os.path.getsize(self.path(name)) for name in self.files()}
            self.assertLess(sizes[second["id"] + ".stet"], sizes[first["id"] + ".stet"])  # a delta
            server.call("DELETE", "/v1/states/" + first["id"])
            self.assertIn(first["id"] + ".stet", self.files())
            again = server.post("/v1/states", {"ids": ids(200)})
            self.assertEqual(again["id"], first["id"])
            server.call("PATCH", "/v1/states/" + again["id"], {"name": "again"})
            server.call("DELETE", "/v1/states/" + second["id"])
            server.kill() if durable else server.stop()
            server = self.server("--memory", "0", *durable)
            self.assertEqual(server.get("/v1/states/" + again["id"])["name"], "again")
            self.assertTrue(server.post("/v1/states/%s/verify" % again["id"], {})["same_bits"])
            for state in self.states(server):
                server.call("DELETE", "/v1/states/" + state)
            server.stop()
            self.assertEqual(sorted(self.content()), ["lock", "secret", "stet-states"])

    def test_deleting_keeps_the_place_of_what_comes_after(self):
        server = self.server()
        chain = [self.make(server, "Let a = 3.")["id"]]
        for i in range(3):
            chain.append(
                server.post("/v1/states/%s/continue" % chain[-1],
                            {"message": {"role": "user", "content": "What is a?"}, "max_tokens": 3}
                            if i else {"max_tokens": 3})["state"]["id"])
        side = server.post("/v1/states/%s/fork" % chain[1], {})["id"]
        server.call("DELETE", "/v1/states/" + chain[1])
        server.call("DELETE", "/v1/states/" + chain[2])
        expected = {chain[0]: None, chain[3]: chain[0], side: chain[0]}
        self.assertEqual({i: s["parent"] for i, s in self.states(server).items()}, expected)
        server.stop()
        server = self.server()
        self.assertEqual({i: s["parent"] for i, s in self.states(server).items()}, expected)
        server.call("DELETE", "/v1/states/" + chain[0])
        server.kill()
        server = self.server()
        self.assertEqual({i: s["parent"] for i, s in self.states(server).items()}, {chain[3]: None, side: None})
        server.stop()

    def test_a_response_that_is_not_kept_removes_what_it_made_alone(self):
        server = self.server()
        ask = {"input": "Let a = 3. What is a?", "max_output_tokens": 4}
        made = server.post("/v1/responses", {**ask, "store": False})
        self.assertEqual(server.call("GET", "/v1/states/" + made["state_id"])[0], 404)
        kept = server.post("/v1/responses", ask)
        for _ in range(2):
            self.assertEqual(server.post("/v1/responses", {**ask, "store": False})["state_id"], kept["state_id"])
        self.assertEqual([
            server.call("GET", path)[0] for path in ("/v1/responses/" + kept["id"], "/v1/states/" + kept["state_id"])
        ], [200, 200])
        server.stop()
        server = self.server()
        server.post("/v1/responses", {**ask, "store": False})
        self.assertEqual(server.call("GET", "/v1/responses/" + kept["id"])[0], 200)
        server.stop()

    def test_names_have_one_limit_and_stay(self):
        server = self.server("--durable")
        for name in ("x" * 201, "é" * 101, "x" * 1000000):
            status, answer = server.call("POST", "/v1/states", {"ids": [2, 3], "name": name})
            self.assertEqual((status, answer["error"]["param"]), (400, "/name"))
            self.assertIn("expected at most 200 bytes, found", answer["error"]["message"])
        self.assertEqual(self.states(server), {})
        name = "é" * 100
        state = server.post("/v1/states", {"ids": [2, 3], "name": name})["id"]
        other = server.post("/v1/states", {"ids": [2, 4], "name": None})["id"]
        server.kill()
        server = self.server("--durable")
        self.assertEqual({i: s["name"] for i, s in self.states(server).items()}, {state: name, other: None})
        server.stop()

    def test_that_a_state_was_verified_is_written(self):
        server = self.server("--durable")
        made = [self.make(server, "Let %s = 3." % c) for c in "ab"]
        snapshots = [server.call("GET", "/v1/states/%s/snapshot" % s["id"])[1] for s in made]
        for s, snapshot in zip(made, snapshots):
            server.call("DELETE", "/v1/states/" + s["id"])
            self.assertEqual(server.call("POST", "/v1/states/upload", raw=snapshot)[1]["origin"], "uploaded")
        server.post("/v1/states/%s/verify" % made[0]["id"], {})
        self.make(server, "Let b = 3.")  # gives the same state
        server.kill()
        server = self.server()
        self.assertEqual({s["origin"] for s in self.states(server).values()}, {"verified"})
        server.stop()


    def test_a_request_that_waits_finds_a_state_that_goes_meanwhile_deleted(self):
        for options, code in (([], "no_such_state"), (["--max-states", "2"], "state_expired")):
            with self.subTest(code=code):
                server = self.server("--memory", "0", "--streams", "1", *options)
                state = self.make(server, LONG)["id"]
                running = unread_reply(server)
                with concurrent.futures.ThreadPoolExecutor(1) as clients:
                    waits = clients.submit(server.call, "POST", "/v1/states/%s/continue" % state, {"n": 1})
                    while server.get("/v1/status")["queued"] == 0:
                        self.assertFalse(waits.done())
                    if code == "no_such_state":
                        self.assertEqual(server.call("DELETE", "/v1/states/" + state)[0], 200)
                    else:
                        newest = state  # in memory, so that these need no place among the streams
                        for i in range(3):
                            newest = server.post("/v1/states/%s/rewind" % newest, {"tokens": 90 - i})["id"]
                    running.close()
                    status, answer = waits.result()
                self.assertEqual((status, answer["error"]["code"]), (404, code))
                self.assertNotIn("lost", server.stop())
                shutil.rmtree(self.directory)


class Many(Directory):
    def expired(self, server, state):
        status, answer = server.call("GET", "/v1/states/" + state)
        self.assertEqual(status, 404)
        return answer["error"]["code"] == "state_expired"

    def chain(self, server, length):
        states = [server.post("/v1/states", {"ids": ids(20)})["id"]]
        for i in range(length - 1):
            states.append(server.post("/v1/states/%s/continue" % states[-1], {"ids": [i + 2], "n": 1})["state"]["id"])
        return states

    def test_those_used_longest_ago_are_forgotten_parents_before_leaves(self):
        for options in ([], ["--state-dir", self.directory]):
            server = Server("--max-states", "4", *options)
            leaf = server.post("/v1/states", {"ids": [3, 4]})["id"]
            pinned = server.post("/v1/states", {"ids": [3, 5]})["id"]
            server.call("PATCH", "/v1/states/" + pinned, {"pinned": True})
            chain = self.chain(server, 4)
            there = {s["id"]: s["parent"] for s in server.get("/v1/states")["data"]}
            self.assertEqual(there, {leaf: None, pinned: None, chain[2]: None, chain[3]: chain[2]})
            for state in chain[:2]:
                self.assertTrue(self.expired(server, state))
            self.assertEqual(server.call("GET", "/v1/states/st_%032x" % 5)[1]["error"]["code"], "no_such_state")
            status, answer = server.call("POST", "/v1/responses",
                                         {"input": "?", "previous_response_id": "resp_" + chain[0][3:]})
            self.assertEqual((status, answer["error"]["code"]), (404, "state_expired"))
            self.assertEqual(server.call("POST", "/v1/chat/completions", request_of("Hi", n=2))[0], 200)  # without end
            server.stop()
        self.assertEqual(len(self.files(".json")), 4)
        server = Server("--state-dir", self.directory)
        self.assertTrue(self.expired(server, chain[0]))
        again = server.post("/v1/states", {"ids": ids(20)})["id"]  # created again
        self.assertEqual((again, server.call("GET", "/v1/states/" + again)[0]), (chain[0], 200))
        server.stop()

    def test_a_pipe_in_place_of_their_list_keeps_nobody_waiting(self):
        self.server().stop()
        os.mkfifo(self.path("expired"))
        server = self.server("--max-states", "2")
        for i in range(4):
            self.assertEqual(server.call("POST", "/v1/states", {"ids": [2, i + 2]})[0], 200)
        server.stop()

    def test_pinned_states_are_never_forgotten(self):
        server = Server("--max-states", "2")
        for i in range(2):
            server.call("PATCH", "/v1/states/" + server.post("/v1/states", {"ids": [2, i + 2]})["id"], {"pinned": True})
        status, answer = server.call("POST", "/v1/states", {"ids": [2, 9]})
        self.assertEqual((status, answer["error"]["code"]), (429, "too_many_states"))
        self.assertEqual(len(server.get("/v1/states")["data"]), 2)
        drawn = server.get("/metrics")
        state = server.get("/v1/states")["data"][0]["id"]
        for path, body in (("/v1/chat/completions", request_of("Hi", n=2)),
                           ("/v1/completions", {"prompt": "Hi", "max_tokens": 2}),
                           ("/v1/responses", {"input": "Hi", "max_output_tokens": 2}),
                           ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}),
                           ("/v1/states/%s/continue" % state, {"max_tokens": 2})):
            for stream in (False, True):  # before the first byte
                status, answer = server.call("POST", path, {**body, "stream": stream})
                self.assertEqual((status, answer["error"]["code"]), (429, "too_many_states"), path)
        line = [x for x in drawn.split(b"\n") if x.startswith(b"stet_drawn_tokens_total ")]
        self.assertIn(line[0], server.get("/metrics").split(b"\n"))
        server.stop()

    def test_pinned_states_leave_memory_like_others(self):
        for options in ([], ["--state-dir", self.directory]):
            server = Server("--memory", "1", *options)
            self.addCleanup(server.kill)
            made = []
            for i in range(8):
                made.append(server.post("/v1/states", {"ids": ids(200, 2 * i + 3)})["id"])
                server.call("PATCH", "/v1/states/" + made[-1], {"pinned": True})
            used, = (line for line in server.get("/metrics").decode().split("\n")
                     if line.startswith("stet_memory_bytes "))
            self.assertLessEqual(float(used.split()[1]), 1 << 20)
            for state in made:
                self.assertTrue(server.post("/v1/states/%s/verify" % state, {})["same_bits"])
            self.assertEqual({s["id"] for s in server.get("/v1/states")["data"] if s["pinned"]}, set(made))

    def test_a_directory_has_room_for_more_than_are_in_memory(self):
        server = self.server("--states-in-memory", "4")
        made = [server.post("/v1/states", {"ids": ids(70 + i)}) for i in range(12)]
        self.assertEqual(list(self.states(server)), [s["id"] for s in made])
        self.assertGreater(len(self.files(".recipe")), 7)
        for s in made:
            self.assertTrue(server.post("/v1/states/%s/verify" % s["id"], {})["same_bits"])
        server.stop()
        server = self.server("--states-in-memory", "4")
        self.assertEqual({i: s["digest"] for i, s in self.states(server).items()}, {s["id"]: s["digest"] for s in made})
        self.assertTrue(server.post("/v1/states/%s/verify" % made[0]["id"], {})["same_bits"])
        server.stop()

    def test_what_was_not_used_for_so_long_is_forgotten(self):
        server = self.server("--durable")
        made = [server.post("/v1/states", {"ids": [2, i + 2]})["id"] for i in range(4)]
        server.call("PATCH", "/v1/states/" + made[3], {"pinned": True})
        server.kill()
        for state in made[:2] + made[3:]:
            os.utime(self.path(state + ".json"), (1000, 1000))
        server = self.server("--ttl", "1000000")
        self.assertEqual(set(self.states(server)), {made[2], made[3]})
        self.assertTrue(self.expired(server, made[0]))
        server.stop()
        self.assertEqual(self.files(".json"), sorted([made[2] + ".json", made[3] + ".json"]))

    def test_that_needs_no_request(self):
        server = self.server("--durable", "--ttl", "1")
        server.post("/v1/states", {"ids": [2, 3]})
        self.assertEqual(len(self.files(".json")), 1)
        until = time.monotonic() + 30
        while self.files(".json") and time.monotonic() < until:
            time.sleep(0.1)
        self.assertEqual((self.files(".json"), self.files(".recipe")), ([], []))
        self.assertEqual(server.get("/v1/status")["states"], 0)
        server.stop()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
