// Server-Sent Events over fetch, which can carry the token as a header (EventSource cannot).

export interface SseMessage {
  id: string;
  event: string;
  data: string;
}

/** Cuts the text of a stream into messages, however it arrives in pieces. */
export class SseParser {
  private rest = "";

  push(text: string): SseMessage[] {
    const blocks = (this.rest + text).replaceAll("\r\n", "\n").split("\n\n");
    this.rest = blocks.pop() ?? "";
    const messages: SseMessage[] = [];
    for (const block of blocks) {
      const message: SseMessage = { id: "", event: "message", data: "" };
      for (const line of block.split("\n")) {
        const colon = line.indexOf(":");
        if (colon <= 0) continue; // a comment: the heartbeat
        const field = line.slice(0, colon);
        const value = line.slice(colon + 1).replace(/^ /, "");
        if (field === "data") message.data += message.data === "" ? value : `\n${value}`;
        else if (field === "id" || field === "event") message[field] = value;
      }
      if (message.data !== "") messages.push(message);
    }
    return messages;
  }
}
