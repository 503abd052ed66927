// The first page that a built site's search gives for each query, as JSON: node search.mjs SITE QUERY ...
import fs from "node:fs";
import vm from "node:vm";

const [site, ...queries] = process.argv.slice(2);
const workers = `${site}/assets/javascripts/workers`;
const { items, config } = JSON.parse(fs.readFileSync(`${site}/search.json`, "utf8"));
const self = {};
const answer = (message) => new Promise((resolve) => ((self.postMessage = resolve), self.onmessage({ data: message })));
const worker = fs.readdirSync(workers).find((name) => name.endsWith(".js"));
vm.runInContext(fs.readFileSync(`${workers}/${worker}`, "utf8"), vm.createContext({ self, Intl }));
await answer({ type: 0, data: { items, config } });
const found = {};
for (const input of queries) {
  const { data } = await answer({ type: 2, data: { input } });
  found[input] = data.items.length ? items[data.items[0].id].location : "";
}
console.log(JSON.stringify(found));
