// A server that says on standard output which requests it was sent: {"port", "request": [method, target, body]}.
//   recorder.mjs   prints its port first
import { createServer } from "node:http";

const server = createServer((request, response) => {
  const body = [];
  request.on("data", (piece) => body.push(piece));
  request.on("end", () => {
    const port = request.headers["x-port"] ?? String(request.socket.remotePort);
    const hex = (bytes) => Buffer.from(bytes, "latin1").toString("hex");
    console.log(JSON.stringify({ port, request: [request.method, hex(request.url), Buffer.concat(body).toString("hex")] }));
    response.end("ok");
  });
});
server.on("checkContinue", (request, response) => server.emit("request", request, response));
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
