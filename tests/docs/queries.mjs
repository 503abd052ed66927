// What a page asks its search's worker for each query, as JSON, where the worker finds nothing: node queries.mjs SCRIPT QUERY ...
// SCRIPT: docs/website/common-words.js.
import fs from "node:fs";
import vm from "node:vm";

const [script, ...queries] = process.argv.slice(2);
let asked = [], shown = [];
class Worker {
  postMessage(message) {
    asked.push(message.data?.input ?? message);
    this.onmessage({ data: { type: 3, data: { items: [] } } });
  }
}
vm.runInContext(fs.readFileSync(script, "utf8"), vm.createContext({ Worker }));
const worker = new Worker(), found = {};
worker.onmessage = (event) => shown.push(event.data);
for (const input of queries) {
  [asked, shown] = [[], []];
  worker.postMessage({ type: 2, data: { input } });
  found[input] = { asked, shown: shown.length };
}
[asked, shown] = [[], []];
worker.postMessage({ type: 2, data: { input: "of it", page: 2 } });
found["a further page"] = { asked, shown: shown.length };
console.log(JSON.stringify(found));
