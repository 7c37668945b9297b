// A server that prints each request it receives: {"from", "request": [method, target, body]}.
//   recorder.mjs   prints its port first
import { createServer } from "node:http";

const server = createServer((request, response) => {
  const body = [];
  const from = request.headers["x-from"] ?? request.socket.remoteAddress;
  request.on("data", (piece) => body.push(piece));
  request.on("end", () => {
    const hex = (bytes) => Buffer.from(bytes, "latin1").toString("hex");
    console.log(JSON.stringify({ from, request: [request.method, hex(request.url),
      Buffer.concat(body).toString("hex")] }));
    response.end("ok");
  });
});
server.on("checkContinue", (request, response) => server.emit("request", request, response));
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
