"use strict";
// Perfetto's trace processor, as its user interface runs it in a worker, between this process's stdin and stdout.
// Arguments: the folder with engine_bundle.js and trace_processor.wasm.
const fs = require("fs"), path = require("path"), vm = require("vm");
const folder = process.argv[2];
const read = (name) => fs.readFileSync(path.join(folder, path.basename(name)));
const write = (bytes) => { for (let done = 0; done < bytes.length;) done += fs.writeSync(1, bytes, done); };
const port = {postMessage: write};
// What a worker has in a browser. Whatever is missing here is JavaScript's own, of the worker's context: an error of
// another context is not `instanceof` the worker's TypeError.
const worker = vm.createContext({
  TextDecoder, TextEncoder, URL, performance, crypto, setTimeout, clearTimeout,
  console: {log() {}, warn() {}, error() {}},
  location: {href: "http://localhost/engine_bundle.js", protocol: "http:", host: "localhost"},
  WorkerGlobalScope: Object,
  XMLHttpRequest: class { open(method, url) { this.name = url; } send() { this.response = read(this.name); } },
});
vm.runInContext("var self = globalThis;", worker);
vm.runInContext(read("engine_bundle.js").toString(), worker);
worker.onmessage({data: port});
const own = vm.runInContext("(bytes) => Uint8Array.from(bytes)", worker);
process.stdin.on("data", (chunk) => port.onmessage({data: own(chunk)}));
