// A participant that reconnects: the same instance with a higher epoch (CONN-11, LEAVE-4).

import { randomBytes } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import { Caller } from "./caller.mjs";
import { Connection } from "./connection.mjs";
import { Refused } from "./errors.mjs";
import { Host } from "./host.mjs";

const FINAL_STATUSES = [401, 403, 404, 426];
// Close codes of section 2 after which a reconnect would be refused again.
const FINAL_CODES = [1002, 1003, 1007, 4401, 4403, 4404, 4409, 4440];

export class Participant {
  #place;
  #epoch = 0;
  #hosted = [];
  #leaving = false;

  /** The current connection, with `caller` and `host`. All three change with a reconnect. */
  connection = null;
  caller = null;
  host = null;

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
    await this.#register(offer);
    this.#hosted.push(offer);
  }

  async leave() {
    this.#leaving = true;
    await this.connection.close();
    return this.gone;
  }

  async #connect() {
    this.#epoch += 1;
    this.connection = await Connection.join({ ...this.#place, epoch: this.#epoch });
    this.caller = new Caller(this.connection);
    this.host = new Host(this.connection);
    try {
      for (const offer of this.#hosted) await this.#register(offer);
    } catch (error) {
      await this.connection.close();
      throw error;
    }
  }

  async #register(offer) {
    const { generation, base } = await this.host.register(offer.toolkit, offer.options);
    offer.options = { ...offer.options, generation, base }; // REG-10
  }

  async #stay() {
    for (let tries = 0; ; ) {
      const why = await this.connection.closed;
      if (this.#leaving || isFinal(why)) return why;
      for (;;) {
        await pause(Math.random() * Math.min(100 * 2 ** tries++, 5_000));
        if (this.#leaving) return why;
        try {
          await this.#connect();
          tries = 0;
          this.onReturn();
          break;
        } catch (error) {
          if (error instanceof Refused && isFinal(error)) return error;
        }
      }
    }
  }
}

function isFinal({ status, closeCode }) {
  return FINAL_STATUSES.includes(status) || FINAL_CODES.includes(closeCode);
}
