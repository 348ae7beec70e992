/** True in the single file that save_html fills: no server, no stream. */
declare const __REPORT__: boolean;
