// A participant that reconnects: the same instance with a higher epoch (CONN-11, LEAVE-4). It moves
// to another server when its own leaves (LEAVE-9), or has lost the others of its bus (LEAVE-11).

import { randomBytes } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import { Caller } from "./caller.mjs";
import { Connection } from "./connection.mjs";
import { Refused } from "./errors.mjs";
import { Approver } from "./holds.mjs";
import { Host } from "./host.mjs";

const FINAL_STATUSES = [401, 403, 404, 426];
// Close codes of section 2 after which a reconnect would be refused again.
const FINAL_CODES = [1002, 1003, 1007, 4401, 4403, 4404, 4409, 4440];
const REMOVED = 4440;

export class Participant {
  #place;
  #epoch = 0;
  #hosted = [];
  #leaving = false;
  #finishing = new Set();

  /** The current connection, with what it is used for. All change with a reconnect. */
  connection = null;
  caller = null;
  host = null;
  approver = null;

  /** Called after each reconnect, when everything is hosted again: subscribe and list again here. */
  onReturn = () => {};

  /** Settles with the reason when there is no connection and none will be made. */
  gone;

  /** Join: `{url, room, token}`. Throws Refused if the first attempt fails. */
  static async join(place) {
    const participant = new Participant({ instance: randomBytes(8).toString("hex"), ...place });
    await participant.#connect();
    participant.gone = participant.#stay();
    return participant;
  }

  constructor(place) {
    this.#place = place;
  }

  /** Host a toolkit, also after every reconnect. */
  async offer(toolkit, options = {}) {
    const offer = { toolkit, options };
    let host;
    do {
      host = this.host;
      await register(host, offer);
    } while (host !== this.host); // it has moved meanwhile
    this.#hosted.push(offer);
  }

  async leave() {
    this.#leaving = true;
    await Promise.all([this.connection, ...this.#finishing].map((each) => each.close()));
    return this.gone;
  }

  async #connect(options = {}) {
    this.#epoch += 1;
    const place = { ...this.#place, epoch: this.#epoch, ...options };
    const connection = await Connection.join(place);
    const host = new Host(connection);
    try {
      for (const offer of this.#hosted) await register(host, offer);
      if (this.#leaving) throw new Error("it leaves");
    } catch (error) {
      await connection.close();
      throw error;
    }
    this.connection = connection;
    this.caller = new Caller(connection);
    this.approver = new Approver(connection);
    this.host = host;
  }

  async #stay() {
    for (;;) {
      const { connection, host } = this;
      const isAsked = connection.isLeaving ? "leaving" : connection.noticed();
      const why = await Promise.race([connection.closed, isAsked]);
      if (this.#leaving || isFinal(why)) return why;
      if (why === "move") {
        // Once for each notice; if it fails, the connection is used as before.
        if (await this.#connect({ elsewhere: true }).catch(() => true)) continue;
      } else {
        const final = await this.#reconnect(connection);
        if (final) return final;
      }
      this.#finish(connection, host);
      this.onReturn();
    }
  }

  // Connect again. Returns the reason if no further attempt can succeed.
  async #reconnect(previous) {
    let ended = null;
    previous.closed.then((why) => (ended = why));
    for (let tries = 0; ; tries++) {
      await pause(Math.random() * Math.min(100 * 2 ** tries, 5_000));
      if (this.#leaving || ended?.closeCode === REMOVED) return previous.closed;
      try {
        return await this.#connect();
      } catch (error) {
        if (error instanceof Refused && isFinal(error)) return error;
      }
    }
  }

  // Close a connection that has a successor, when no call is under way on it any more.
  async #finish(connection, host) {
    this.#finishing.add(connection);
    try {
      await host.drain();
      await connection.settled();
    } catch {
      // It was lost, and its calls with it.
    }
    await connection.close();
    this.#finishing.delete(connection);
  }
}

async function register(host, offer) {
  const { generation, base } = await host.register(offer.toolkit, offer.options);
  offer.options = { ...offer.options, generation, base }; // REG-10
}

function isFinal({ status, closeCode }) {
  return FINAL_STATUSES.includes(status) || FINAL_CODES.includes(closeCode);
}
