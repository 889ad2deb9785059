// Takes node-redlock's lock, and gives it back as it is told.
const { createInterface } = require("node:readline");
const Redis = require("ioredis");
const { default: Redlock } = require("redlock");

const [, , url, key, seconds] = process.argv;
const redlock = new Redlock([new Redis(url)], { retryCount: 0 });
redlock.on("error", (error) => console.error(String(error)));
const ttl = Number(seconds) * 1000;
let lock;
const does = {
  acquire: async () => { lock = await redlock.acquire([key], ttl); },
  extend: async () => { lock = await lock.extend(ttl); },
  release: () => lock.release(),
};

(async () => {
  for await (const told of createInterface({ input: process.stdin })) {
    try {
      await does[told]();
      console.log("yes");
    } catch (error) {
      console.error(told, String(error));
      console.log("no");
    }
  }
  process.exit();
})();
