// The first two pages that a built site's search shows for each query, as JSON: node search.mjs SITE SCRIPT QUERY ...
// SCRIPT: what the site puts before its search's worker (docs/website/ranking.js), which runs here as in a page.
import fs from "node:fs";
import vm from "node:vm";

const [site, script, ...queries] = process.argv.slice(2);
const workers = `${site}/assets/javascripts/workers`;
const { items, config } = JSON.parse(fs.readFileSync(`${site}/search.json`, "utf8"));
const self = {};
const source = fs.readdirSync(workers).find((name) => name.endsWith(".js"));
vm.runInContext(fs.readFileSync(`${workers}/${source}`, "utf8"), vm.createContext({ self, Intl }));
class Worker {
  postMessage(data) {
    self.postMessage = (answer) => this.onmessage({ data: answer });
    self.onmessage({ data });
  }
}
vm.runInContext(fs.readFileSync(script, "utf8"), vm.createContext({ Worker, queueMicrotask }));
const worker = new Worker();
let resolve;
worker.onmessage = ({ data }) => resolve(data);
const answer = (message) => new Promise((done) => ((resolve = done), worker.postMessage(message)));
await answer({ type: 0, data: { items, config } });
const found = {};
for (const input of queries) {
  const { data } = await answer({ type: 2, data: { input } });
  const pages = data.items.map(({ id }) => items[id].location.split("#")[0]);
  found[input] = [...new Set(pages)].slice(0, 2);
}
console.log(JSON.stringify(found));
